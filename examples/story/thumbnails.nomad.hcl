# The story of docs/debugging.md: a batch of many short tasks, a seat each.
job "thumbnails" {
  type = "batch"

  group "page" {
    count = 15

    task "draw" {
      driver = "raw_exec"

      config {
        command = "/bin/sleep"
        args    = ["10"]
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
