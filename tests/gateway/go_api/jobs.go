package main

import (
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
)

// What `nomad job …` asks without changing much.
var jobRows = []row{
	{"job validate", func(all *world) error {
		answer, _, err := all.client.Jobs().Validate(service("web", "sleep 600"), nil)
		must(err)
		check(answer.Error == "" && answer.DriverConfigValidated, "refused: %s", answer.Error)
		wrong := service("web", "sleep 600")
		wrong.TaskGroups[0].Count = pointer(-1)
		answer, _, err = all.client.Jobs().Validate(wrong, nil)
		must(err)
		check(answer.Error != "" && len(answer.ValidationErrors) > 0, "accepted")
		return nil
	}},
	{"job plan of a new job", func(all *world) error {
		answer, _, err := all.client.Jobs().PlanOpts(service("web", "sleep 600"), &api.PlanOptions{Diff: true}, nil)
		must(err)
		check(answer.Diff.Type == "Added", "type %q", answer.Diff.Type)
		check(answer.Annotations.DesiredTGUpdates["g"].Place == 1, "places none")
		check(answer.NextPeriodicLaunch.IsZero(), "a launch of a job that is not periodic")
		check(len(answer.FailedTGAllocs) == 0, "cannot be placed")
		return nil
	}},
	{"job run", func(all *world) error {
		eval := register(all, service("web", "sleep 600"))
		check(eval.Status == "complete", "status %q", eval.Status)
		check(eval.DeploymentID != "", "no deployment")
		check(eval.JobID == "web" && eval.CreateIndex > 0 && eval.CreateTime > 0, "evaluation %+v", eval)
		return nil
	}},
	{"any job verb finds its job by prefix", func(all *world) error {
		query := &api.QueryOptions{Prefix: "we", PerPage: 20}
		found, meta, err := all.client.Jobs().List(query)
		must(err)
		check(len(found) == 1 && found[0].ID == "web", "found %d", len(found))
		check(found[0].JobSummary.Namespace == "default", "namespace of the summary")
		check(meta.LastIndex > 0 && meta.KnownLeader, "headers of a read")
		none, _, err := all.client.Jobs().List(&api.QueryOptions{Prefix: "none"})
		must(err)
		check(none != nil && len(none) == 0, "a list that is empty is a list")
		return nil
	}},
	{"job status of all", func(all *world) error {
		found, _, err := all.client.Jobs().List(nil)
		must(err)
		one := found[0]
		check(one.Type == "service" && one.Priority == 50 && one.SubmitTime > 0, "stub %+v", one)
		check(one.Status == "running" && !one.Stop, "status %q", one.Status)
		everywhere, _, err := all.client.Jobs().List(&api.QueryOptions{Namespace: "*"})
		must(err)
		check(len(everywhere) == len(found), "all namespaces have %d", len(everywhere))
		elsewhere, _, err := all.client.Jobs().List(&api.QueryOptions{Namespace: "other"})
		must(err)
		check(len(elsewhere) == 0, "another namespace has %d", len(elsewhere))
		return nil
	}},
	{"job status", func(all *world) error {
		job, _, err := all.client.Jobs().Info("web", nil)
		must(err)
		check(*job.ID == "web" && *job.Name == "web" && *job.Namespace == "default", "names")
		check(*job.SubmitTime > 0 && *job.Type == "service" && *job.Priority == 50, "fields")
		check(*job.Status == "running" && !*job.Stop && *job.Version == 0 && *job.Region == "global", "state")
		check(*job.TaskGroups[0].Name == "g" && *job.TaskGroups[0].Count == 1, "group")
		all.web = job
		_, _, err = all.client.Jobs().Allocations("web", true, nil)
		must(err)
		evals, _, err := all.client.Jobs().Evaluations("web", nil)
		must(err)
		check(len(evals) > 0 && evals[0].JobID == "web", "evaluations")
		deployment, _, err := all.client.Jobs().LatestDeployment("web", nil)
		must(err)
		check(deployment.JobID == "web" && deployment.TaskGroups["g"].DesiredTotal == 1, "deployment")
		summary, _, err := all.client.Jobs().Summary("web", nil)
		must(err)
		check(summary.JobID == "web" && summary.Summary["g"].Running+summary.Summary["g"].Starting == 1, "summary")
		return nil
	}},
	{"job inspect", func(all *world) error {
		versions, _, _, err := all.client.Jobs().Versions("web", false, nil)
		must(err)
		check(len(versions) == 1 && *versions[0].Version == 0, "versions")
		source, _, err := all.client.Jobs().Submission("web", 0, nil)
		must(err)
		check(source.Source == "job {}" && source.Format == "hcl2", "source %+v", source)
		_, _, err = all.client.Jobs().Submission("web", 77, nil)
		off(err, 404, "job source not found")
		return nil
	}},
	{"job allocs, job deployments", func(all *world) error {
		allocs, _, err := all.client.Jobs().Allocations("web", false, nil)
		must(err)
		one := allocs[0]
		check(one.JobID == "web" && one.TaskGroup == "g" && one.NodeID != "" && one.NodeName != "", "stub %+v", one)
		check(one.Name == "web.g[0]" && one.CreateTime > 0 && one.JobType == "service", "stub %+v", one)
		deployments, _, err := all.client.Jobs().Deployments("web", true, nil)
		must(err)
		check(len(deployments) == 1, "deployments %d", len(deployments))
		return nil
	}},
	{"a job that is not there", func(all *world) error {
		_, _, err := all.client.Jobs().Info("missing", nil)
		off(err, 404, "job not found")
		_, _, _, err = all.client.Jobs().Versions("missing", false, nil)
		off(err, 404, "job versions not found")
		_, _, err = all.client.Jobs().Deregister("missing", false, nil)
		off(err, 404, "job not found")
		nothing, _, err := all.client.Jobs().LatestDeployment("missing", nil)
		must(err)
		check(nothing == nil, "a deployment of a job that is not there")
		return nil
	}},
	{"a job's id may contain slashes", func(all *world) error {
		id := "team/web"
		register(all, batch(id, "true"))
		job, _, err := all.client.Jobs().Info(id, nil)
		must(err)
		check(*job.ID == id, "id %q", *job.ID)
		_, _, err = all.client.Jobs().Summary(id, nil)
		must(err)
		purge(all, id)
		return nil
	}},
	{"job parse", func(all *world) error {
		text := "job \"parsed\" {\n  group \"g\" {\n    task \"t\" {\n      driver = \"raw_exec\"\n" +
			"      config { command = \"true\" }\n    }\n  }\n}\n"
		job, err := all.client.Jobs().ParseHCL(text, true)
		must(err)
		check(*job.ID == "parsed" && *job.TaskGroups[0].Name == "g", "job %+v", job)
		check(*job.Type == "service" && *job.TaskGroups[0].Count == 1, "defaults of %+v", job)
		sparse, err := all.client.Jobs().ParseHCL(text, false)
		must(err)
		check(*sparse.Name == "parsed" && sparse.Type == nil && sparse.Priority == nil, "job %+v", sparse)
		_, err = all.client.Jobs().ParseHCL("job {", true)
		off(err, 400, "")
		return nil
	}},
}

// What changes jobs.
var changeRows = []row{
	{"job run without a change, and with one", func(all *world) error {
		before, _, err := all.client.Jobs().Info("web", nil)
		must(err)
		register(all, service("web", "sleep 600"))
		same, _, err := all.client.Jobs().Info("web", nil)
		must(err)
		check(*same.Version == *before.Version && *same.JobModifyIndex == *before.JobModifyIndex, "a new version")
		changed := service("web", "sleep 700")
		plan, _, err := all.client.Jobs().PlanOpts(changed, &api.PlanOptions{Diff: true}, nil)
		must(err)
		check(plan.Diff.Type == "Edited" && plan.Diff.TaskGroups[0].Type == "Edited", "diff %+v", plan.Diff)
		check(plan.Annotations.DesiredTGUpdates["g"].DestructiveUpdate == 1, "updates %+v", plan.Annotations)
		check(plan.JobModifyIndex == *same.JobModifyIndex, "index of the plan")
		register(all, changed)
		return nil
	}},
	{"job run -check-index", func(all *world) error {
		job, _, err := all.client.Jobs().Info("web", nil)
		must(err)
		_, _, err = all.client.Jobs().EnforceRegister(service("web", "sleep 800"), *job.JobModifyIndex+1000, nil)
		off(err, 500, "Enforcing job modify index")
		_, _, err = all.client.Jobs().EnforceRegister(service("web", "sleep 800"), 0, nil)
		off(err, 500, "Enforcing job modify index 0: job already exists")
		_, _, err = all.client.Jobs().EnforceRegister(service("absent", "sleep 800"), 5, nil)
		off(err, 500, "job does not exist")
		answer, _, err := all.client.Jobs().EnforceRegister(service("web", "sleep 800"), *job.JobModifyIndex, nil)
		must(err)
		monitor(all, answer.EvalID)
		return nil
	}},
	{"job history", func(all *world) error {
		versions, diffs, _, err := all.client.Jobs().VersionsOpts("web", &api.VersionsOptions{Diffs: true}, nil)
		must(err)
		check(len(versions) == 3 && len(diffs) == 2, "%d versions, %d diffs", len(versions), len(diffs))
		check(*versions[0].Version == 2 && *versions[2].Version == 0, "newest first")
		check(versions[0].Stable != nil && *versions[0].SubmitTime > 0, "fields")
		check(diffs[0].Type == "Edited", "diff %+v", diffs[0])
		return nil
	}},
	{"job history against a version, and against a tag", func(all *world) error {
		_, err := all.client.Jobs().TagVersion("web", 0, "golden", "as it began", nil)
		must(err)
		tagged, _, err := all.client.Jobs().VersionByTag("web", "golden", nil)
		must(err)
		check(*tagged.Version == 0 && tagged.VersionTag.Name == "golden", "tag %+v", tagged.VersionTag)
		check(tagged.VersionTag.TaggedTime > 0, "no time of the tag")
		options := &api.VersionsOptions{Diffs: true, DiffVersion: pointer(uint64(0))}
		versions, diffs, _, err := all.client.Jobs().VersionsOpts("web", options, nil)
		must(err)
		check(len(versions) == 3 && len(diffs) == 3, "%d versions, %d diffs", len(versions), len(diffs))
		check(diffs[0].Type == "Edited" && diffs[2].Type == "None", "diffs against version 0")
		_, diffs, _, err = all.client.Jobs().VersionsOpts("web", &api.VersionsOptions{Diffs: true, DiffTag: "golden"}, nil)
		must(err)
		check(len(diffs) == 3 && diffs[2].Type == "None", "diffs against a tag")
		_, err = all.client.Jobs().UntagVersion("web", "golden", nil)
		must(err)
		return nil
	}},
	{"job revert", func(all *world) error {
		_, _, err := all.client.Jobs().Revert("web", 2, nil, nil, "", "")
		off(err, 500, "can't revert to current version")
		_, _, err = all.client.Jobs().Revert("web", 77, nil, nil, "", "")
		check(err != nil, "reverted to a version that is not there")
		answer, _, err := all.client.Jobs().Revert("web", 0, nil, nil, "", "")
		must(err)
		monitor(all, answer.EvalID)
		_, _, err = all.client.Jobs().Stable("web", 0, true, nil)
		must(err)
		return nil
	}},
	{"job scale", func(all *world) error {
		answer, _, err := all.client.Jobs().Scale("web", "g", pointer(2), "more", false, nil, nil)
		must(err)
		monitor(all, answer.EvalID)
		status, _, err := all.client.Jobs().ScaleStatus("web", nil)
		must(err)
		check(status.JobID == "web" && status.TaskGroups["g"].Desired == 2, "status %+v", status)
		_, _, err = all.client.Jobs().Scale("web", "g", nil, "only an event", true, nil, nil)
		off(err, 400, "")
		answer, _, err = all.client.Jobs().Scale("web", "g", pointer(1), "fewer", false, nil, nil)
		must(err)
		monitor(all, answer.EvalID)
		return nil
	}},
	{"job eval", func(all *world) error {
		id, _, err := all.client.Jobs().EvaluateWithOpts("web", api.EvalOptions{}, nil)
		must(err)
		monitor(all, id)
		id, _, err = all.client.Jobs().ForceEvaluate("web", nil)
		must(err)
		monitor(all, id)
		id, _, err = all.client.Jobs().EvaluateWithOpts("web", api.EvalOptions{ForceReschedule: true}, nil)
		must(err)
		monitor(all, id)
		return nil
	}},
	{"job restart", func(all *world) error {
		alloc := running(all, "web")
		check(*alloc.Job.Type == "service" && *alloc.Job.Version >= 0, "job of the allocation")
		must(all.client.Allocations().Restart(alloc, "main", nil))
		alloc = running(all, "web")
		until("all its tasks can be restarted", func() bool {
			return all.client.Allocations().RestartAllTasks(alloc, nil) == nil
		})
		until("the task was restarted", func() bool {
			found, _, err := all.client.Allocations().Info(alloc.ID, nil)
			must(err)
			return found.TaskStates["main"] != nil && !found.TaskStates["main"].StartedAt.IsZero()
		})
		return nil
	}},
	{"job dispatch", func(all *world) error {
		job := batch("sorted", "true")
		job.ParameterizedJob = &api.ParameterizedJobConfig{Payload: "optional", MetaOptional: []string{"kind"}}
		answer, _, err := all.client.Jobs().Register(job, nil)
		must(err)
		check(answer.EvalID == "", "an evaluation of a parameterized job")
		query := &api.QueryOptions{Prefix: "sorted", Filter: "ParameterizedJob is not nil"}
		found, _, err := all.client.Jobs().List(query)
		must(err)
		check(len(found) == 1 && found[0].ParameterizedJob, "found %d", len(found))
		options := &api.DispatchOptions{JobID: "sorted", Meta: map[string]string{"kind": "a"}, Payload: []byte("x")}
		once := &api.WriteOptions{IdempotencyToken: "once"}
		first, _, err := all.client.Jobs().DispatchOpts(options, once)
		must(err)
		check(strings.HasPrefix(first.DispatchedJobID, "sorted/dispatch-"), "child %q", first.DispatchedJobID)
		monitor(all, first.EvalID)
		second, _, err := all.client.Jobs().DispatchOpts(options, once)
		must(err)
		check(second.DispatchedJobID == first.DispatchedJobID && second.EvalID == "", "second %+v", second)
		children, _, err := all.client.Jobs().PrefixList("sorted/dispatch-")
		must(err)
		check(len(children) == 1 && children[0].ParentID == "sorted", "children %d", len(children))
		summary, _, err := all.client.Jobs().Summary("sorted", nil)
		must(err)
		check(summary.Children.Pending+summary.Children.Running+summary.Children.Dead == 1, "summary of children")
		child, _, err := all.client.Jobs().Info(first.DispatchedJobID, nil)
		must(err)
		check(child.Dispatched && *child.ParentID == "sorted", "child %+v", child)
		_, _, err = all.client.Jobs().Dispatch("web", nil, nil, "", nil)
		off(err, 500, "is not a parameterized job")
		purge(all, "sorted")
		return nil
	}},
	{"periodic force", func(all *world) error {
		job := batch("nightly", "true")
		job.Periodic = &api.PeriodicConfig{
			Enabled: pointer(true), Spec: pointer("0 0 1 1 *"), SpecType: pointer("cron"),
		}
		_, _, err := all.client.Jobs().Register(job, nil)
		must(err)
		query := &api.QueryOptions{Prefix: "nightly", Filter: "Periodic is not nil"}
		found, _, err := all.client.Jobs().List(query)
		must(err)
		check(len(found) == 1 && found[0].Periodic, "found %d", len(found))
		plan, _, err := all.client.Jobs().Plan(job, true, nil)
		must(err)
		check(plan.NextPeriodicLaunch.After(time.Now()), "next launch %s", plan.NextPeriodicLaunch)
		id, _, err := all.client.Jobs().PeriodicForce("nightly", nil)
		must(err)
		monitor(all, id)
		_, _, err = all.client.Jobs().PeriodicForce("web", nil)
		check(err != nil, "a launch of a job that is not periodic")
		children, _, err := all.client.Jobs().PrefixList("nightly/periodic-")
		must(err)
		check(len(children) == 1, "children %d", len(children))
		purge(all, "nightly")
		return nil
	}},
	{"job stop and start", func(all *world) error {
		id, _, err := all.client.Jobs().DeregisterOpts("web", &api.DeregisterOptions{Purge: false}, nil)
		must(err)
		monitor(all, id)
		job, _, err := all.client.Jobs().Info("web", nil)
		must(err)
		check(*job.Stop, "not stopped")
		versions, _, _, err := all.client.Jobs().Versions("web", false, nil)
		must(err)
		again := versions[0]
		_, _, err = all.client.Jobs().Submission("web", int(*again.Version), nil)
		must(err)
		again.Stop = pointer(false)
		register(all, again)
		running(all, "web")
		return nil
	}},
	{"a job that does not fit", func(all *world) error {
		job := service("huge", "sleep 600")
		job.TaskGroups[0].Tasks[0].Resources.MemoryMB = pointer(1 << 30)
		plan, _, err := all.client.Jobs().Plan(job, true, nil)
		must(err)
		check(plan.FailedTGAllocs["g"] != nil, "the plan places it")
		answer, _, err := all.client.Jobs().Register(job, nil)
		must(err)
		var eval *api.Evaluation
		until("its evaluation says why", func() bool {
			eval, _, err = all.client.Evaluations().Info(answer.EvalID, nil)
			must(err)
			return eval.Status == "complete"
		})
		check(eval.FailedTGAllocs["g"] != nil && eval.BlockedEval != "", "evaluation %+v", eval)
		blocked, _, err := all.client.Evaluations().Info(eval.BlockedEval, nil)
		must(err)
		check(blocked.Status == "blocked", "status %q", blocked.Status)
		purge(all, "huge")
		return nil
	}},
}
