# Where allocations may go, where they rather go, and how they spread.
job "placement" {
  datacenters = ["dc1", "dc2"]

  update {
    min_healthy_time = "1s"
  }

  constraint {
    attribute = "${attr.kernel.name}"
    value     = "linux"
  }

  affinity {
    attribute = "${node.datacenter}"
    value     = "dc1"
    weight    = 50
  }

  spread {
    attribute = "${node.unique.id}"
    weight    = 100
  }

  group "app" {
    count = 2

    constraint {
      operator  = "regexp"
      attribute = "${attr.kernel.version}"
      value     = "^[0-9]+\\."
    }

    task "main" {
      driver = "raw_exec"

      config {
        command = "/bin/sleep"
        args    = ["100000"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }
}
