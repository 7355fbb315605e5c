# The story of docs/debugging.md: three seats taken by a service that continues.
job "viewers" {
  # Healthy after a second, so that the example does not take long; the default is 10s.
  update {
    min_healthy_time = "1s"
  }

  group "viewer" {
    count = 3

    task "view" {
      driver = "raw_exec"

      config {
        command = "/bin/sleep"
        args    = ["3600"]
      }

      resources {
        cpu    = 20
        memory = 16

        custom "seat" {
          amount = 1
        }
      }
    }
  }
}
