# A whole life: steps before, beside and after the main task, told in the order in which they run.
#
#   caravan job run examples/lifecycle.nomad.hcl
#   caravan alloc status 'lifecycle.app[0]'
#   caravan job stop lifecycle
job "lifecycle" {
  # Healthy after a second, so that the example does not take long; the default is 10s.
  update {
    min_healthy_time = "1s"
  }

  group "app" {
    # Prestart tasks run one after another; after a failure the chain continues with the step that failed.
    restart_from   = "failed"
    shutdown_delay = "500ms"

    task "fetch" {
      driver = "raw_exec"

      lifecycle {
        hook = "prestart"
      }

      config {
        command = "/bin/sh"
        args    = ["-c", "echo fetched > $NOMAD_ALLOC_DIR/data/order"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }

    task "unpack" {
      driver = "raw_exec"

      lifecycle {
        hook = "prestart"
      }

      config {
        command = "/bin/sh"
        args    = ["-c", "echo unpacked >> $NOMAD_ALLOC_DIR/data/order"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }

    task "proxy" {
      driver = "raw_exec"

      lifecycle {
        hook    = "prestart"
        sidecar = true
      }

      config {
        command = "/bin/sleep"
        args    = ["100000"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }

    task "server" {
      driver       = "raw_exec"
      leader       = true
      kill_signal  = "SIGTERM"
      kill_timeout = "5s"

      config {
        command = "/bin/sh"
        args    = ["-c", "echo serving >> $NOMAD_ALLOC_DIR/data/order; exec sleep 100000"]
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }

    task "announce" {
      driver = "raw_exec"

      lifecycle {
        hook = "poststart"
      }

      config {
        command = "/bin/sh"
        args    = ["-c", "echo announced >> $NOMAD_ALLOC_DIR/data/order"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }

    task "drain" {
      driver = "raw_exec"

      lifecycle {
        hook = "prestop"
      }

      config {
        command = "/bin/sh"
        args    = ["-c", "echo drained >> $NOMAD_ALLOC_DIR/data/order"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }

    task "alarm" {
      driver = "raw_exec"

      lifecycle {
        hook = "postfail"
      }

      config {
        command = "/bin/sh"
        args    = ["-c", "echo $CARAVAN_FAILED_TASK ended with $CARAVAN_FAILED_EXIT_CODE"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }

    task "tidy" {
      driver = "raw_exec"

      lifecycle {
        hook = "poststop"
      }

      config {
        command = "/bin/sh"
        args    = ["-c", "echo tidied >> $NOMAD_ALLOC_DIR/data/order; cat $NOMAD_ALLOC_DIR/data/order"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }
}
