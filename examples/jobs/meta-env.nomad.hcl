# Meta of three levels, and references to the node, to meta and to other variables.
job "meta-env" {
  type = "batch"

  meta {
    team = "ops"
    tier = "job"
  }

  group "app" {
    meta {
      tier = "group"
    }

    task "main" {
      driver = "raw_exec"

      meta {
        color = "blue"
      }

      env {
        TEAM   = "${NOMAD_META_team}"
        WHERE  = "${node.datacenter}-${attr.kernel.name}"
        BOTH   = "${NOMAD_META_color}/${NOMAD_META_tier}"
        LITERAL = "$${not.a.reference}"
      }

      config {
        command = "/bin/sh"
        args    = ["-c", "test \"$TEAM $WHERE $BOTH\" = 'ops dc1-linux blue/group' && test \"$LITERAL\" = '$${not.a.reference}'"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }
}
