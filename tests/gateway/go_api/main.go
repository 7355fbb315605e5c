// Performs what the commands of Nomad's CLI and its Terraform provider ask of a server, with the real structs of
// Nomad's Go API. Prints a line for each row, `ok NAME` or `FAILED NAME: REASON`.
package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
)

const patience = 60 * time.Second

// world is what the rows share.
type world struct {
	client *api.Client
	// the version that the job `web` was registered as first.
	web *api.Job
}

type row struct {
	name string
	run  func(*world) error
}

func main() {
	config := api.DefaultConfig()
	client, err := api.NewClient(config)
	if err != nil {
		fmt.Println("FAILED client:", err)
		os.Exit(1)
	}
	all := &world{client: client}
	for _, rows := range [][]row{jobRows, changeRows, allocRows, nodeRows, deploymentRows, clusterRows, terraformRows} {
		for _, one := range rows {
			if err := perform(all, one); err != nil {
				fmt.Printf("FAILED %s: %s\n", one.name, strings.ReplaceAll(err.Error(), "\n", " | "))
			} else {
				fmt.Println("ok", one.name)
			}
		}
	}
}

// perform runs a row; what would panic the CLI is a failure of that row.
func perform(all *world, one row) (err error) {
	defer func() {
		if found := recover(); found != nil {
			err = fmt.Errorf("panic: %v", found)
		}
	}()
	return one.run(all)
}

// must ends a row with an error.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

func check(holds bool, text string, more ...any) {
	if !holds {
		panic(fmt.Sprintf(text, more...))
	}
}

// off checks an answer to what is not there: its status and a part of its text.
func off(err error, status int, text string) {
	var answer api.UnexpectedResponseError
	check(errors.As(err, &answer), "an answer of %d was expected, was %v", status, err)
	check(answer.StatusCode() == status, "status %d, was %d: %s", status, answer.StatusCode(), answer.Body())
	check(strings.Contains(answer.Body(), text), "%q in %q", text, answer.Body())
}

// until repeats a look until it holds.
func until(what string, holds func() bool) {
	end := time.Now().Add(patience)
	for !holds() {
		check(time.Now().Before(end), "in vain: %s", what)
		time.Sleep(100 * time.Millisecond)
	}
}

// pointer gives what an optional field of the API takes.
func pointer[T any](value T) *T { return &value }

// service makes a job of one raw_exec task that runs until it is ended.
func service(id string, command string) *api.Job {
	task := api.NewTask("main", "raw_exec").
		SetConfig("command", "/bin/sh").
		SetConfig("args", []string{"-c", command})
	task.Resources = &api.Resources{CPU: pointer(20), MemoryMB: pointer(16)}
	task.KillTimeout = pointer(time.Second)
	group := api.NewTaskGroup("g", 1).AddTask(task)
	group.Update = &api.UpdateStrategy{
		MaxParallel:     pointer(1),
		MinHealthyTime:  pointer(100 * time.Millisecond),
		HealthyDeadline: pointer(30 * time.Second),
		Canary:          pointer(0),
	}
	job := api.NewServiceJob(id, id, "global", 50).AddTaskGroup(group)
	job.Datacenters = []string{"*"}
	return job
}

// batch makes a job of one task that ends.
func batch(id string, command string) *api.Job {
	job := service(id, command)
	job.Type = pointer("batch")
	job.TaskGroups[0].Update = nil
	return job
}

// register does what `job run` does and returns the evaluation that placed.
func register(all *world, job *api.Job) *api.Evaluation {
	source := &api.JobSubmission{Source: "job {}", Format: "hcl2"}
	answer, meta, err := all.client.Jobs().RegisterOpts(job, &api.RegisterOptions{Submission: source}, nil)
	must(err)
	check(meta.LastIndex > 0, "no index of the write")
	check(answer.JobModifyIndex > 0, "no JobModifyIndex")
	return monitor(all, answer.EvalID)
}

// monitor does what the CLI does with the id of an evaluation.
func monitor(all *world, evalID string) *api.Evaluation {
	check(len(evalID) == 36, "the id %q is no UUID", evalID)
	var found *api.Evaluation
	until("the evaluation "+evalID+" ends", func() bool {
		query := &api.QueryOptions{Params: map[string]string{"related": "true"}}
		eval, _, err := all.client.Evaluations().Info(evalID, query)
		must(err)
		allocs, _, err := all.client.Evaluations().Allocations(evalID, nil)
		must(err)
		for _, one := range allocs {
			check(one.NodeID != "" && one.ID != "", "an allocation without node or id")
		}
		found = eval
		return eval.Status == "complete" || eval.Status == "failed" || eval.Status == "canceled"
	})
	if found.NextEval != "" {
		return monitor(all, found.NextEval)
	}
	if found.DeploymentID != "" {
		until("the deployment has ended", func() bool {
			one, meta, err := all.client.Deployments().Info(found.DeploymentID, &api.QueryOptions{AllowStale: true})
			must(err)
			check(meta.LastIndex > 0, "no index of a deployment")
			return one.Status == "successful" || one.Status == "failed" || one.Status == "cancelled"
		})
	}
	return found
}

// running waits for an allocation of a job that runs.
func running(all *world, job string) *api.Allocation {
	var found *api.Allocation
	until("an allocation of "+job+" runs", func() bool {
		stubs, _, err := all.client.Jobs().Allocations(job, false, nil)
		must(err)
		for _, one := range stubs {
			if one.ClientStatus == "running" && one.DesiredStatus == "run" {
				found, _, err = all.client.Allocations().Info(one.ID, nil)
				must(err)
			}
		}
		return found != nil
	})
	return found
}

func purge(all *world, job string) {
	_, _, err := all.client.Jobs().Deregister(job, true, nil)
	must(err)
}
