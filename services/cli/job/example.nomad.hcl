# A job file: the desired workload. `caravan job plan` shows what it would change, `caravan job run` submits it.

# Values that may differ from run to run: caravan job run --var count=3 ...
variable "count" {
  type    = number
  default = 2
}

job "example" {
  # service: runs until it is stopped. batch: runs until it is done.
  type = "service"

  # Only nodes of these datacenters; "*" stands for any text.
  datacenters = ["*"]

  # Higher goes first where room is short: 1 to 100.
  priority = 50

  # Tasks of a group are placed together on one node; `count` is the desired number of allocations.
  group "web" {
    count = var.count

    # A task that ends is started again on its node: at most 2 times in 30 minutes, after 15 seconds.
    restart {
      attempts = 2
      interval = "30m"
      delay    = "15s"
      mode     = "fail"
    }

    # What failed for good is placed again, on another node where there is one.
    reschedule {
      delay          = "30s"
      delay_function = "exponential"
      max_delay      = "1h"
      unlimited      = true
    }

    task "server" {
      # A plain process of the agent's user, without isolation.
      driver = "raw_exec"

      config {
        command = "/bin/sh"
        args    = ["-c", "echo serving as $NOMAD_ALLOC_NAME on $GREETING; exec sleep 3600"]
      }

      env {
        GREETING = "node ${node.unique.name}"
      }

      # What it takes of a node: MHz, MiB.
      resources {
        cpu    = 100
        memory = 64
      }

      # How it is asked to end, and how long until it is killed.
      kill_signal  = "SIGTERM"
      kill_timeout = "10s"

      # What is kept of its output.
      logs {
        max_files     = 3
        max_file_size = 5
      }
    }
  }
}
