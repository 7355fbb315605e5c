package main

import (
	"time"

	"github.com/hashicorp/nomad/api"
)

// canary registers a version of a job whose deployment waits to be promoted.
func canary(all *world, command string) *api.Deployment {
	job := service("canary", command)
	job.TaskGroups[0].Update.Canary = pointer(1)
	answer, _, err := all.client.Jobs().Register(job, nil)
	must(err)
	check(answer.EvalID != "", "no evaluation")
	var found *api.Deployment
	until("the canary is healthy", func() bool {
		found, _, err = all.client.Jobs().LatestDeployment("canary", nil)
		must(err)
		return found != nil && found.Status == "running" && found.TaskGroups["g"].DesiredCanaries == 1 &&
			found.TaskGroups["g"].HealthyAllocs == 1
	})
	return found
}

// What `nomad deployment …` asks.
var deploymentRows = []row{
	{"deployment status, promote", func(all *world) error {
		register(all, service("canary", "sleep 600"))
		waits := canary(all, "sleep 601")
		check(len(waits.TaskGroups["g"].PlacedCanaries) == 1 && !waits.TaskGroups["g"].Promoted, "canaries")
		check(!waits.TaskGroups["g"].RequireProgressBy.IsZero(), "no deadline")
		found, _, err := all.client.Deployments().Info(waits.ID, nil)
		must(err)
		check(found.JobID == "canary" && found.JobVersion == 1 && found.StatusDescription != "", "deployment %+v", found)
		allocs, _, err := all.client.Deployments().Allocations(waits.ID, nil)
		must(err)
		check(len(allocs) == 1 && allocs[0].DeploymentStatus.Canary && *allocs[0].DeploymentStatus.Healthy, "allocations")
		answer, _, err := all.client.Deployments().PromoteAll(waits.ID, nil)
		must(err)
		monitor(all, answer.EvalID)
		return nil
	}},
	{"deployment list", func(all *world) error {
		found, _, err := all.client.Deployments().List(&api.QueryOptions{PerPage: 1})
		must(err)
		check(len(found) == 1, "a page of %d", len(found))
		filtered, _, err := all.client.Deployments().List(&api.QueryOptions{Filter: `JobID == "canary"`})
		must(err)
		check(len(filtered) == 2, "deployments %d", len(filtered))
		prefixed, _, err := all.client.Deployments().PrefixList(filtered[0].ID[:8])
		must(err)
		check(len(prefixed) == 1, "prefix finds %d", len(prefixed))
		return nil
	}},
	{"deployment pause, resume, fail", func(all *world) error {
		waits := canary(all, "sleep 602")
		_, _, err := all.client.Deployments().Pause(waits.ID, true, nil)
		must(err)
		found, _, err := all.client.Deployments().Info(waits.ID, nil)
		must(err)
		check(found.Status == "paused", "status %q", found.Status)
		_, _, err = all.client.Deployments().Pause(waits.ID, false, nil)
		must(err)
		answer, _, err := all.client.Deployments().Fail(waits.ID, nil)
		must(err)
		check(answer.DeploymentModifyIndex > 0, "index")
		found, _, err = all.client.Deployments().Info(waits.ID, nil)
		must(err)
		check(found.Status == "failed", "status %q", found.Status)
		for want, err := range map[string]error{
			"can't fail terminal deployment":    second(all.client.Deployments().Fail(waits.ID, nil)),
			"can't pause terminal deployment":   second(all.client.Deployments().Pause(waits.ID, true, nil)),
			"can't resume terminal deployment":  second(all.client.Deployments().Pause(waits.ID, false, nil)),
			"can't promote terminal deployment": second(all.client.Deployments().PromoteAll(waits.ID, nil)),
			"can't unblock terminal deployment": second(all.client.Deployments().Unblock(waits.ID, nil)),
		} {
			off(err, 500, want)
		}
		return nil
	}},
	{"deployment set health", func(all *world) error {
		job := service("manual", "sleep 600")
		job.TaskGroups[0].Update.HealthCheck = pointer("manual")
		_, _, err := all.client.Jobs().Register(job, nil)
		must(err)
		alloc := running(all, "manual")
		deployment, _, err := all.client.Jobs().LatestDeployment("manual", nil)
		must(err)
		_, _, err = all.client.Deployments().SetAllocHealth(deployment.ID, []string{alloc.ID}, nil, nil)
		must(err)
		until("it was successful", func() bool {
			found, _, err := all.client.Deployments().Info(deployment.ID, nil)
			must(err)
			return found.Status == "successful"
		})
		_, _, err = all.client.Deployments().SetAllocHealth(deployment.ID, []string{alloc.ID}, nil, nil)
		off(err, 500, "can't set health of allocations for a terminal deployment")
		purge(all, "manual")
		return nil
	}},
	{"a blocking query of a deployment ends at its wait", func(all *world) error {
		found, meta, err := all.client.Jobs().LatestDeployment("canary", nil)
		must(err)
		_, again, err := all.client.Deployments().Info(found.ID, &api.QueryOptions{
			WaitIndex: meta.LastIndex + 1000, WaitTime: 50 * time.Millisecond, AllowStale: true,
		})
		must(err)
		check(again.LastIndex > 0, "index %d", again.LastIndex)
		purge(all, "canary")
		_, _, err = all.client.Deployments().Info("00000000-0000-0000-0000-000000000000", nil)
		off(err, 404, "deployment not found")
		return nil
	}},
}

func second[A, B any](_ A, _ B, err error) error { return err }
