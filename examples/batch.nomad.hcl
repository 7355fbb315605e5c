# A job that ends: each allocation counts to ten, and the job is complete when all of them did.
job "count-to-ten" {
  type     = "batch"
  priority = 40

  group "counters" {
    count = 5

    task "count" {
      driver = "raw_exec"

      config {
        command = "/bin/sh"
        args    = ["-c", <<-SCRIPT
          i=0
          while [ $i -lt 10 ]; do
            i=$((i + 1))
            echo "$NOMAD_ALLOC_INDEX: $i"
            sleep 0.1
          done
          SCRIPT
        ]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }
}
