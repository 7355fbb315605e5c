package main

import (
	"github.com/hashicorp/nomad/api"
)

// What the resource `nomad_job` of the Terraform provider asks, in its order.
var terraformRows = []row{
	{"terraform: create", func(all *world) error {
		job := service("planned", "sleep 600")
		_, _, err := all.client.Jobs().Info("planned", nil)
		off(err, 404, "job not found")
		plan, _, err := all.client.Jobs().PlanOpts(job, &api.PlanOptions{Diff: false}, nil)
		must(err)
		check(plan.JobModifyIndex == 0 && plan.Diff == nil, "plan %+v", plan)
		source := &api.JobSubmission{Source: "job \"planned\" {}", Format: "hcl2"}
		answer, _, err := all.client.Jobs().RegisterOpts(job, &api.RegisterOptions{Submission: source}, nil)
		must(err)
		monitor(all, answer.EvalID)
		return nil
	}},
	{"terraform: read", func(all *world) error {
		job, _, err := all.client.Jobs().Info("planned", nil)
		must(err)
		check(*job.Name == "planned" && *job.Namespace == "default" && *job.Region == "global", "job %+v", job)
		check(*job.Version == 0 && *job.JobModifyIndex > 0 && len(job.Datacenters) > 0, "job %+v", job)
		group := job.TaskGroups[0]
		check(*group.Name == "g" && *group.Count == 1 && group.Tasks[0].Driver == "raw_exec", "group %+v", group)
		check(*group.EphemeralDisk.SizeMB >= 0 && *group.RestartPolicy.Attempts >= 0, "defaults of the group")
		check(group.Update.MaxParallel != nil && group.ReschedulePolicy.Unlimited != nil, "policies of the group")
		source, _, err := all.client.Jobs().Submission("planned", int(*job.Version), nil)
		must(err)
		check(source.Source == "job \"planned\" {}", "source %q", source.Source)
		return nil
	}},
	{"terraform: plan without a change", func(all *world) error {
		job, _, err := all.client.Jobs().Info("planned", nil)
		must(err)
		plan, _, err := all.client.Jobs().PlanOpts(service("planned", "sleep 600"), &api.PlanOptions{Diff: false}, nil)
		must(err)
		check(plan.JobModifyIndex == *job.JobModifyIndex, "index %d of the plan", plan.JobModifyIndex)
		return nil
	}},
	{"terraform: update", func(all *world) error {
		job, _, err := all.client.Jobs().Info("planned", nil)
		must(err)
		// Without EnforceIndex the index is not compared.
		options := &api.RegisterOptions{ModifyIndex: *job.JobModifyIndex}
		answer, _, err := all.client.Jobs().RegisterOpts(service("planned", "sleep 601"), options, nil)
		must(err)
		monitor(all, answer.EvalID)
		again, _, err := all.client.Jobs().Info("planned", nil)
		must(err)
		check(*again.Version == 1 && *again.JobModifyIndex > *job.JobModifyIndex, "version %d", *again.Version)
		return nil
	}},
	{"terraform: what was read can be registered again", func(all *world) error {
		job, _, err := all.client.Jobs().Info("planned", nil)
		must(err)
		_, _, err = all.client.Jobs().Register(job, nil)
		must(err)
		again, _, err := all.client.Jobs().Info("planned", nil)
		must(err)
		check(*again.Version == *job.Version, "version %d became %d", *job.Version, *again.Version)
		return nil
	}},
	{"terraform: destroy", func(all *world) error {
		_, _, err := all.client.Jobs().Deregister("planned", true, nil)
		must(err)
		until("it is gone", func() bool {
			_, _, err := all.client.Jobs().Info("planned", nil)
			return err != nil
		})
		_, _, err = all.client.Jobs().Info("planned", nil)
		off(err, 404, "job not found")
		return nil
	}},
}
