job "example" {
  type        = "service"
  datacenters = ["dc1"]
  group "cache" {
    task "redis" {
      driver = "raw_exec"
      config {
        command = "/bin/sleep"
        args    = ["1000"]
      }
      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
