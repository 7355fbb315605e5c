# One on each node, with its logs bounded.
job "system" {
  type     = "system"
  priority = 80

  group "agent" {
    task "collect" {
      driver = "raw_exec"

      config {
        command = "/bin/sh"
        args    = ["-c", "echo on ${node.unique.name}; exec sleep 100000"]
      }

      logs {
        max_files     = 2
        max_file_size = 1
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }
}
