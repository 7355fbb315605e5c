# A service whose next version begins with a canary, and goes back when it is not healthy.
job "update-canary" {
  update {
    max_parallel      = 1
    canary            = 1
    min_healthy_time  = "1s"
    healthy_deadline  = "1m"
    progress_deadline = "2m"
    auto_revert       = true
    auto_promote      = false
  }

  group "web" {
    count = 2

    task "server" {
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
