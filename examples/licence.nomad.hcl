# A resource of one's own: two seats of a licence each, of which the cluster has so many.
#
#   caravan operator resource set seat --amount 5
#   caravan job run examples/licence.nomad.hcl
#   caravan operator resource list
job "render" {
  # Healthy after a second, so that the example does not take long; the default is 10s.
  update {
    min_healthy_time = "1s"
  }

  group "render" {
    count = 3

    task "frame" {
      driver = "raw_exec"

      config {
        command = "/bin/sleep"
        args    = ["3600"]
      }

      resources {
        cpu    = 20
        memory = 16

        custom "seat" {
          amount = 2
        }
      }
    }
  }
}
