# What a web service usually asks for: ports, containers, spread over datacenters. One group for each entry of a map, made
# by a dynamic block.
variable "image" {
  default = "docker.io/library/nginx:1.27"
}

variable "sites" {
  type = map(object({
    count  = number
    memory = optional(number, 128)
  }))
  default = {
    shop = { count = 3, memory = 256 }
    blog = { count = 1 }
  }
}

locals {
  labels = { for name, site in var.sites : name => "site=${name},size=${site.count}" }
}

job "web" {
  datacenters = ["dc1", "dc2"]

  constraint {
    attribute = "${attr.kernel.name}"
    value     = "linux"
  }

  spread {
    attribute = "${node.datacenter}"
    weight    = 100
  }

  dynamic "group" {
    for_each = var.sites
    iterator = site
    labels   = [site.key]

    content {
      count = site.value.count

      network {
        port "http" { to = 80 }
      }

      task "nginx" {
        driver = "docker"

        config {
          image = var.image
          ports = ["http"]
        }

        env {
          LABELS = local.labels[site.key]
        }

        resources {
          cpu    = 200
          memory = site.value.memory
        }
      }
    }
  }
}
