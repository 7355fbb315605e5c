# The end of the leader is the end of the group, also of tasks that would run on.
job "leader" {
  type = "batch"

  group "app" {
    task "work" {
      driver = "raw_exec"
      leader = true

      config {
        command = "/bin/sleep"
        args    = ["1"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }

    task "log-shipper" {
      driver       = "raw_exec"
      kill_timeout = "5s"

      config {
        command = "/bin/sleep"
        args    = ["100000"]
      }

      resources {
        cpu        = 20
        memory     = 16
        memory_max = 32
      }
    }
  }
}
