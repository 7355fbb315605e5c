# A job that ends, in isolation: each allocation counts words in a directory of its own, and shows what it can see.
# Needs agents that run as root; docs/drivers.md says what the driver does.
job "exec-batch" {
  type = "batch"

  group "counters" {
    count = 3

    task "count" {
      driver = "exec"

      config {
        command      = "/bin/sh"
        network_mode = "none"
        args = ["-c", <<-SCRIPT
          echo "user $(id -un), $(ls /proc | grep -c '^[0-9]') processes, files: $(ls / | tr '\n' ' ')"
          tr -cs 'a-z' '\n' < /etc/services | sort | uniq -c | sort -rn | head -3 > /local/words
          cat /local/words
          SCRIPT
        ]
      }

      resources {
        cpu        = 100
        memory     = 32
        memory_max = 128
      }
    }
  }
}
