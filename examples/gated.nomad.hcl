# A service whose new versions wait while a gauge is out of bounds. docs/updates.md uses it.
# caravan gauge set queue_depth 40 publishes the gauge once; a program does so every few seconds.
job "till" {
  type = "service"

  update {
    max_parallel     = 1
    min_healthy_time = "1s"

    gate "load" {
      gauge      = "queue_depth"
      below      = 100
      for        = "2s"
      timeout    = "1h"
      on_timeout = "fail"
    }
  }

  group "web" {
    count = 1

    task "server" {
      driver = "raw_exec"

      config {
        command = "/bin/sleep"
        args    = ["100000"]
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
