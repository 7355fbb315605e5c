package main

import (
	"bytes"
	"context"
	"io"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
)

const ticker = `i=0; while true; do i=$((i+1)); echo "tick $i"; sleep 0.2; done`

// What `nomad alloc …` and `nomad eval …` ask.
var allocRows = []row{
	{"any alloc verb finds its allocation by prefix", func(all *world) error {
		alloc := running(all, "web")
		for _, prefix := range []string{alloc.ID, alloc.ID[:8], alloc.ID[:5]} {
			found, _, err := all.client.Allocations().List(&api.QueryOptions{Prefix: prefix})
			must(err)
			check(len(found) == 1 && found[0].ID == alloc.ID, "%q finds %d", prefix, len(found))
		}
		found, _, err := all.client.Allocations().PrefixList("00000000")
		must(err)
		check(len(found) == 0, "found %d", len(found))
		_, _, err = all.client.Allocations().Info("00000000-0000-0000-0000-000000000000", nil)
		off(err, 404, "alloc not found")
		return nil
	}},
	{"alloc status", func(all *world) error {
		alloc := running(all, "web")
		check(*alloc.Job.Version >= 0 && alloc.Job.LookupTaskGroup(alloc.TaskGroup) != nil, "no group in the job")
		taken := alloc.TaskResources["main"]
		check(*taken.CPU == 20 && *taken.MemoryMB == 16, "resources of the task")
		check(*alloc.Resources.DiskMB >= 0 && *alloc.Resources.CPU == 20, "resources")
		check(alloc.AllocatedResources.Tasks["main"].Cpu.CpuShares == 20, "allocated resources")
		check(alloc.Metrics.NodesEvaluated >= 0 && alloc.Metrics != nil, "metrics")
		check(alloc.CreateTime > 0 && alloc.ModifyTime > 0 && alloc.EvalID != "", "times and evaluation")
		state := alloc.TaskStates["main"]
		check(state.State == "running" && !state.StartedAt.IsZero() && state.FinishedAt.IsZero(), "state %+v", state)
		check(state.Events[0].Type != "" && state.Events[0].Time > 0, "events")
		check(state.Events[0].DisplayMessage != "", "no display message")
		_, err := all.client.Allocations().Checks(alloc.ID, nil)
		must(err)
		stats, err := all.client.Allocations().Stats(alloc, nil)
		must(err)
		check(stats.ResourceUsage.MemoryStats != nil && stats.ResourceUsage.CpuStats != nil, "statistics")
		_, _, err = all.client.Allocations().Services(alloc.ID, nil)
		must(err)
		_, _, err = all.client.Evaluations().Info(alloc.EvalID, nil)
		must(err)
		return nil
	}},
	{"alloc logs", func(all *world) error {
		register(all, service("ticker", ticker))
		alloc := running(all, "ticker")
		cancel := make(chan struct{})
		frames, errs := all.client.AllocFS().Logs(alloc, true, "main", "stdout", "start", 0, cancel, nil)
		text := ""
		end := time.After(patience)
		for strings.Count(text, "\n") < 3 {
			select {
			case frame := <-frames:
				check(frame != nil, "the stream ended at %q", text)
				text += string(frame.Data)
			case err := <-errs:
				must(err)
			case <-end:
				check(false, "in vain: lines, have %q", text)
			}
		}
		close(cancel)
		check(strings.HasPrefix(text, "tick 1\ntick 2\n"), "log %q", text)
		tail, errs := all.client.AllocFS().Logs(alloc, false, "main", "stdout", "end", 120, nil, nil)
		text = ""
		for frame := range tail {
			text += string(frame.Data)
		}
		check(strings.HasPrefix(text, "tick ") && strings.Count(text, "\n") <= 1, "tail %q", text)
		_, errs = all.client.AllocFS().Logs(alloc, false, "none", "stdout", "start", 0, nil, nil)
		check(<-errs != nil, "logs of a task that is not there")
		_, errs = all.client.AllocFS().Logs(alloc, false, "main", "stdwhat", "start", 0, nil, nil)
		off(<-errs, 400, "")
		return nil
	}},
	{"alloc fs", func(all *world) error {
		alloc := running(all, "ticker")
		files, _, err := all.client.AllocFS().List(alloc, "/", nil)
		must(err)
		check(len(files) > 0, "an empty allocation")
		path := "alloc/logs/main.stdout.0"
		file, _, err := all.client.AllocFS().Stat(alloc, path, nil)
		must(err)
		check(!file.IsDir && file.Size > 0 && !file.ModTime.IsZero() && file.FileMode != "", "file %+v", file)
		check(file.Name == "main.stdout.0", "name %q", file.Name)
		check(readAll(all.client.AllocFS().Cat(alloc, path, nil))[:7] == "tick 1\n", "cat")
		check(readAll(all.client.AllocFS().ReadAt(alloc, path, 7, 7, nil)) == "tick 2\n", "readat")
		cancel := make(chan struct{})
		frames, errs := all.client.AllocFS().Stream(alloc, path, "start", 0, cancel, nil)
		select {
		case frame := <-frames:
			check(strings.HasPrefix(string(frame.Data), "tick 1\n"), "stream %q", frame.Data)
		case err := <-errs:
			must(err)
		}
		close(cancel)
		_, _, err = all.client.AllocFS().Stat(alloc, "none", nil)
		off(err, 404, "")
		_, errs = all.client.AllocFS().Stream(alloc, "none", "start", 0, nil, nil)
		off(<-errs, 400, "")
		purge(all, "ticker")
		return nil
	}},
	{"alloc exec", func(all *world) error {
		alloc := running(all, "web")
		var out, faults bytes.Buffer
		words := []string{"/bin/sh", "-c", "read word; echo got $word; echo oops >&2; exit 7"}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		code, err := all.client.Allocations().Exec(ctx, alloc, "main", false, words,
			strings.NewReader("this\n"), &out, &faults, nil, nil)
		must(err)
		check(code == 7, "exit code %d", code)
		check(out.String() == "got this\n" && faults.String() == "oops\n", "%q, %q", out.String(), faults.String())
		_, err = all.client.Allocations().Exec(ctx, alloc, "none", false, words,
			strings.NewReader(""), &out, &faults, nil, nil)
		check(err != nil, "a command beside a task that is not there")
		return nil
	}},
	{"alloc signal", func(all *world) error {
		alloc := running(all, "web")
		err := all.client.Allocations().Signal(alloc, nil, "main", "SIGWHAT")
		check(err != nil && strings.Contains(err.Error(), "invalid signal"), "a signal that is none: %v", err)
		must(all.client.Allocations().Signal(alloc, nil, "main", "SIGCONT"))
		return nil
	}},
	{"alloc pause", func(all *world) error {
		alloc := running(all, "web")
		_, _, err := all.client.Allocations().GetPauseState(alloc, nil, "main")
		off(err, 501, "not built")
		off(all.client.Allocations().SetPauseState(alloc, nil, "main", "pause"), 501, "not built")
		return nil
	}},
	{"alloc stop", func(all *world) error {
		alloc := running(all, "web")
		answer, err := all.client.Allocations().Stop(alloc, nil)
		must(err)
		monitor(all, answer.EvalID)
		until("another allocation runs", func() bool { return running(all, "web").ID != alloc.ID })
		old, _, err := all.client.Allocations().Info(alloc.ID, nil)
		must(err)
		check(old.DesiredStatus == "stop", "desired status %q", old.DesiredStatus)
		until("it has ended", func() bool {
			old, _, err = all.client.Allocations().Info(alloc.ID, nil)
			must(err)
			return old.ClientStatus == "complete"
		})
		must(all.client.Allocations().GC(old, nil))
		return nil
	}},
	{"a blocking query of an allocation", func(all *world) error {
		alloc := running(all, "web")
		_, meta, err := all.client.Allocations().Info(alloc.ID, nil)
		must(err)
		must(all.client.Allocations().RestartAllTasks(alloc, nil))
		index := meta.LastIndex
		until("its index grows", func() bool {
			_, meta, err = all.client.Allocations().Info(alloc.ID, &api.QueryOptions{
				WaitIndex: index, WaitTime: 10 * time.Second,
			})
			must(err)
			return meta.LastIndex > index
		})
		return nil
	}},
	{"eval list, status, delete", func(all *world) error {
		found, _, err := all.client.Evaluations().List(nil)
		must(err)
		check(len(found) > 1, "evaluations %d", len(found))
		var walked []string
		query := &api.QueryOptions{PerPage: 2}
		for {
			page, meta, err := all.client.Evaluations().List(query)
			must(err)
			for _, one := range page {
				walked = append(walked, one.ID)
			}
			if meta.NextToken == "" {
				break
			}
			query.NextToken = meta.NextToken
		}
		check(len(walked) >= len(found), "walked %d of %d", len(walked), len(found))
		filtered, _, err := all.client.Evaluations().List(&api.QueryOptions{Filter: `JobID == "web"`})
		must(err)
		for _, one := range filtered {
			check(one.JobID == "web", "filter lets %q through", one.JobID)
		}
		check(len(filtered) > 0, "filter lets nothing through")
		_, _, err = all.client.Evaluations().List(&api.QueryOptions{Filter: "JobID =="})
		off(err, 400, "failed to create result paginator: failed to read filter expression")
		_, _, err = all.client.Evaluations().List(&api.QueryOptions{Filter: `Nothing == "x"`})
		off(err, 400, "failed to read result page: error finding value in datum")
		one, _, err := all.client.Evaluations().PrefixList(found[0].ID[:8])
		must(err)
		check(len(one) == 1, "prefix finds %d", len(one))
		count, _, err := all.client.Evaluations().Count(nil)
		must(err)
		check(count.Count > 0, "count %d", count.Count)
		_, err = all.client.Evaluations().Delete([]string{found[0].ID}, nil)
		off(err, 400, "evaluations are facts")
		_, _, err = all.client.Evaluations().Info("00000000-0000-0000-0000-000000000000", nil)
		off(err, 404, "eval not found")
		return nil
	}},
}

func readAll(body io.ReadCloser, err error) string {
	must(err)
	defer body.Close()
	raw, err := io.ReadAll(body)
	must(err)
	return string(raw)
}
