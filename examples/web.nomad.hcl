# What a web service usually asks for: ports, a checked service, rolling updates, spread over datacenters. One group for
# each entry of a map, made by a dynamic block.
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

  update {
    max_parallel     = 1
    min_healthy_time = "10s"
    healthy_deadline = "3m"
    auto_revert      = true
  }

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

      service {
        name     = site.key
        port     = "http"
        provider = "nomad"
        tags     = split(",", local.labels[site.key])

        check {
          type     = "http"
          path     = "/"
          interval = "10s"
          timeout  = "2s"
        }
      }

      task "nginx" {
        driver = "docker"

        config {
          image = var.image
          ports = ["http"]
        }

        template {
          destination = "local/site.conf"
          data        = <<-EOT
            server {
              listen {{ env "NOMAD_PORT_http" }};
              %{~ for name in keys(var.sites) }
              # ${name}
              %{~ endfor }
            }
            EOT
        }

        resources {
          cpu    = 200
          memory = site.value.memory
        }
      }
    }
  }
}
