# A GPU of its own for a task. Without one: CARAVAN_AGENT_FAKE_GPUS=nvidia/gpu/t4:1
job "devices" {
  type = "batch"

  group "train" {
    task "fit" {
      driver = "raw_exec"

      config {
        command = "/bin/sh"
        args    = ["-c", "test -n \"$NVIDIA_VISIBLE_DEVICES\" && test \"$CUDA_VISIBLE_DEVICES\" = \"$CARAVAN_DEVICE_GPU\""]
      }

      resources {
        cpu    = 20
        memory = 16

        device "nvidia/gpu" {
          count = 1

          constraint {
            attribute = "${device.model}"
            operator  = "!="
            value     = "k80"
          }

          affinity {
            attribute = "${device.model}"
            value     = "t4"
            weight    = 100
          }
        }
      }
    }
  }
}
