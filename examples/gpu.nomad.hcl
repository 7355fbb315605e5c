# Devices: two GPUs of one kind, else four of another, and a quarter of one for a small task beside.
#
# Try it without a GPU:
#   CARAVAN_AGENT_FAKE_GPUS="nvidia/gpu/a100:2,amd/gpu/mi210:8" caravan up
job "train" {
  type = "batch"

  group "train" {
    task "fit" {
      driver = "raw_exec"

      config {
        command = "/bin/sh"
        args    = ["-c", "echo training on $CARAVAN_DEVICE_GPU; sleep 30"]
      }

      resources {
        cpu    = 50
        memory = 32

        device "gpu" {
          # The first that fits anywhere is taken.
          first_available {
            name  = "nvidia/gpu/a100"
            count = 2
          }

          first_available {
            name  = "amd/gpu"
            count = 4
          }

          # On one socket or switch where there is one with room for all.
          grouping = "compact"
        }
      }
    }
  }

  group "watch" {
    count = 4

    task "plot" {
      driver = "raw_exec"

      config {
        command = "/bin/sh"
        args    = ["-c", "echo a quarter of $CARAVAN_DEVICE_GPU; sleep 30"]
      }

      resources {
        cpu    = 20
        memory = 16

        # Up to 4 decimals; a part is always of one instance, and never of one that is taken whole.
        device "gpu" {
          count = 0.25

          constraint {
            attribute = "${device.vendor}"
            value     = "amd"
          }
        }
      }
    }
  }
}
