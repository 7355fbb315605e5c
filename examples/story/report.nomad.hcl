# The story of docs/debugging.md: one short, urgent task.
variable "priority" {
  type    = number
  default = 50
}

job "report" {
  type     = "batch"
  priority = var.priority

  group "report" {
    task "write" {
      driver = "raw_exec"

      config {
        command = "/bin/sleep"
        args    = ["2"]
      }

      resources {
        cpu    = 20
        memory = 32

        custom "seat" {
          amount = 1
        }
      }
    }
  }
}
