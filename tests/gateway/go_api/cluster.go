package main

import (
	"context"
	"errors"
	"strings"

	"github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/api/contexts"
)

// What the commands about the cluster ask, and what answers as switched off.
var clusterRows = []row{
	{"the end of many verbs: agent self", func(all *world) error {
		self, err := all.client.Agent().Self()
		must(err)
		check(self.Member.Tags["build"] != "" && self.Member.Status == "alive", "member %+v", self.Member)
		ui := self.Config["UI"].(map[string]any)
		check(ui["ShowCLIHints"] == false, "hints of a page that is Nomad's")
		return nil
	}},
	{"server members, status, regions", func(all *world) error {
		members, err := all.client.Agent().Members()
		must(err)
		check(len(members.Members) > 0 && members.ServerRegion == "global", "members %+v", members)
		check(members.Members[0].Tags["role"] == "nomad" && members.Members[0].Port > 0, "member %+v", members.Members[0])
		leader, err := all.client.Status().Leader()
		must(err)
		peers, err := all.client.Status().Peers()
		must(err)
		check(leader == peers[0], "leader %q", leader)
		regions, err := all.client.Regions().List()
		must(err)
		check(len(regions) == 1 && regions[0] == "global", "regions %v", regions)
		servers, err := all.client.Agent().Servers()
		must(err)
		check(len(servers) == 1, "servers %v", servers)
		health, err := all.client.Agent().Health()
		must(err)
		check(health.Server.Ok && health.Client.Ok, "health %+v", health)
		_, err = all.client.Agent().Join("nope")
		check(err != nil, "joined")
		must(all.client.Agent().ForceLeave("nope"))
		return nil
	}},
	{"an unknown region", func(all *world) error {
		_, _, err := all.client.Jobs().List(&api.QueryOptions{Region: "mars"})
		off(err, 500, "No path to region")
		_, _, err = all.client.Jobs().Register(service("mars", "true"), &api.WriteOptions{Region: "mars"})
		off(err, 500, "No path to region")
		_, _, err = all.client.Jobs().List(&api.QueryOptions{Region: "global"})
		must(err)
		return nil
	}},
	{"monitor", func(all *world) error {
		_, errs := all.client.Agent().Monitor(nil, &api.QueryOptions{Params: map[string]string{"node_id": "node-1"}})
		off(<-errs, 501, "node-1")
		stop := make(chan struct{})
		defer close(stop)
		frames, errs := all.client.Agent().Monitor(stop, &api.QueryOptions{Params: map[string]string{"log_level": "info"}})
		for lines := ""; !strings.Contains(lines, "gateway.monitored"); {
			select {
			case frame := <-frames:
				lines += string(frame.Data)
			case err := <-errs:
				return err
			}
		}
		return nil
	}},
	{"status of any id, by search", func(all *world) error {
		found, _, err := all.client.Search().PrefixSearch("we", contexts.All, nil)
		must(err)
		check(len(found.Matches[contexts.Jobs]) == 1, "jobs %v", found.Matches)
		node := firstNode(all)
		found, _, err = all.client.Search().PrefixSearch(node.ID[:6], contexts.All, nil)
		must(err)
		check(found.Matches[contexts.Nodes][0] == node.ID, "nodes %v", found.Matches)
		check(!found.Truncations[contexts.Nodes], "truncated")
		_, _, err = all.client.Search().PrefixSearch("x", contexts.Context("what"), nil)
		off(err, 400, "context")
		fuzzy, _, err := all.client.Search().FuzzySearch("web", contexts.All, nil)
		must(err)
		check(fuzzy.Matches[contexts.Jobs][0].ID == "web", "fuzzy %v", fuzzy.Matches)
		return nil
	}},
	{"operator scheduler get-config, set-config", func(all *world) error {
		config, _, err := all.client.Operator().SchedulerGetConfiguration(nil)
		must(err)
		before := config.SchedulerConfig
		check(before.SchedulerAlgorithm != "" && before.ModifyIndex > 0, "config %+v", before)
		changed := &api.SchedulerConfiguration{SchedulerAlgorithm: api.SchedulerAlgorithmSpread}
		changed.PreemptionConfig = before.PreemptionConfig
		answer, _, err := all.client.Operator().SchedulerSetConfiguration(changed, nil)
		must(err)
		check(answer.Updated, "not updated")
		config, _, err = all.client.Operator().SchedulerGetConfiguration(nil)
		must(err)
		check(config.SchedulerConfig.SchedulerAlgorithm == "spread", "algorithm %q", config.SchedulerConfig.SchedulerAlgorithm)
		stale := *before
		answer, _, err = all.client.Operator().SchedulerCASConfiguration(&stale, nil)
		must(err)
		check(!answer.Updated, "updated with an old index")
		fresh := *before
		fresh.ModifyIndex = config.SchedulerConfig.ModifyIndex
		answer, _, err = all.client.Operator().SchedulerCASConfiguration(&fresh, nil)
		must(err)
		check(answer.Updated, "not updated with the present index")
		unbuilt := &api.SchedulerConfiguration{MemoryOversubscriptionEnabled: true}
		_, _, err = all.client.Operator().SchedulerSetConfiguration(unbuilt, nil)
		off(err, 400, "not built")
		return nil
	}},
	{"operator raft, autopilot, snapshot, metrics, api", func(all *world) error {
		raft, err := all.client.Operator().RaftGetConfiguration(nil)
		must(err)
		check(len(raft.Servers) == 1 && raft.Servers[0].Leader, "servers %+v", raft.Servers)
		off(all.client.Operator().RaftRemovePeerByID("x", nil), 501, "")
		off(all.client.Operator().RaftTransferLeadershipByID("x", nil), 501, "not built")
		_, _, err = all.client.Operator().AutopilotGetConfiguration(nil)
		off(err, 501, "not built")
		_, _, err = all.client.Operator().AutopilotServerHealth(nil)
		off(err, 501, "not built")
		_, err = all.client.Operator().Snapshot(nil)
		off(err, 501, "log export")
		_, err = all.client.Operator().SnapshotRestore(strings.NewReader("x"), nil)
		off(err, 501, "")
		summary, _, err := all.client.Operator().MetricsSummary(nil)
		must(err)
		check(len(summary.Gauges) > 0, "no gauges")
		text, err := all.client.Operator().Metrics(&api.QueryOptions{Params: map[string]string{"format": "prometheus"}})
		must(err)
		check(strings.Contains(string(text), "caravan_gateway_seq"), "metrics as text")
		body, err := all.client.Raw().Response("/v1/jobs", nil)
		check(readAll(body, err) != "", "raw")
		_, _, err = all.client.Operator().LicenseGet(nil)
		check(err != nil, "a licence")
		return nil
	}},
	{"system gc, reconcile summaries", func(all *world) error {
		must(all.client.System().GarbageCollect())
		must(all.client.System().ReconcileSummaries())
		return nil
	}},
	{"event stream", func(all *world) error {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		topics := map[api.Topic][]string{api.TopicJob: {"web"}, api.TopicEvaluation: {"*"}, api.TopicNode: {"*"},
			api.TopicAllocation: {"*"}, api.TopicDeployment: {"*"}}
		events, err := all.client.EventStream().Stream(ctx, topics, 1, nil)
		must(err)
		seen, last := map[api.Topic]bool{}, uint64(0)
		for len(seen) < 5 {
			one := <-events
			check(one != nil, "the stream ended with %v", seen)
			must(one.Err)
			check(one.Index > last, "index %d behind %d", one.Index, last)
			last = one.Index
			for _, event := range one.Events {
				decodes(event)
				seen[event.Topic] = true
			}
		}
		return nil
	}},
	{"service list, info, delete", func(all *world) error {
		job := service("served", "sleep 600")
		job.TaskGroups[0].Services = []*api.Service{{Name: "door", Provider: "nomad", PortLabel: "9000", Tags: []string{"a"}}}
		register(all, job)
		running(all, "served")
		until("the service is listed", func() bool {
			found, _, err := all.client.Services().List(nil)
			must(err)
			return len(found) == 1 && found[0].Services[0].ServiceName == "door"
		})
		found, _, err := all.client.Services().Get("door", nil)
		must(err)
		one := found[0]
		check(one.ServiceName == "door" && one.Port == 9000 && one.AllocID != "" && one.NodeID != "", "instance %+v", one)
		mine, _, err := all.client.Jobs().Services("served", nil)
		must(err)
		check(len(mine) == 1 && mine[0].ID == one.ID, "services of the job %d", len(mine))
		mine, _, err = all.client.Allocations().Services(one.AllocID, nil)
		must(err)
		check(len(mine) == 1, "services of the allocation %d", len(mine))
		_, err = all.client.Services().Delete("door", one.ID, nil)
		off(err, 400, "follows from its allocation")
		none, _, err := all.client.Services().Get("none", nil)
		must(err)
		check(len(none) == 0, "instances of nothing")
		purge(all, "served")
		return nil
	}},
	{"namespace list, status, apply, delete", func(all *world) error {
		found, _, err := all.client.Namespaces().List(nil)
		must(err)
		check(len(found) == 1 && found[0].Name == "default", "namespaces %d", len(found))
		_, _, err = all.client.Namespaces().Info("default", nil)
		must(err)
		_, _, err = all.client.Namespaces().Info("other", nil)
		off(err, 404, "")
		_, err = all.client.Namespaces().Register(&api.Namespace{Name: "other"}, nil)
		off(err, 501, "namespaces are not built")
		_, err = all.client.Namespaces().Delete("other", nil)
		off(err, 501, "namespaces are not built")
		return nil
	}},
	{"node pools", func(all *world) error {
		found, _, err := all.client.NodePools().List(nil)
		must(err)
		check(len(found) == 2 && found[0].Name == "all" && found[1].Name == "default", "pools %+v", found)
		one, _, err := all.client.NodePools().Info("default", nil)
		must(err)
		check(one.Name == "default", "pool %+v", one)
		nodes, _, err := all.client.NodePools().ListNodes("default", nil)
		must(err)
		check(len(nodes) == 1, "nodes %d", len(nodes))
		jobs, _, err := all.client.NodePools().ListJobs("default", nil)
		must(err)
		check(len(jobs) > 0, "no jobs")
		_, _, err = all.client.NodePools().Info("none", nil)
		off(err, 404, "node pool not found")
		_, err = all.client.NodePools().Register(&api.NodePool{Name: "other"}, nil)
		off(err, 501, "not built")
		return nil
	}},
	{"acl", func(all *world) error {
		_, _, err := all.client.ACLTokens().Bootstrap(nil)
		off(err, 400, "ACL support disabled")
		_, _, err = all.client.ACLTokens().Self(nil)
		off(err, 400, "ACL support disabled")
		_, _, err = all.client.ACLPolicies().List(nil)
		off(err, 400, "ACL support disabled")
		return nil
	}},
	{"var put, get, list, purge", func(all *world) error {
		variables := all.client.Variables()
		made, _, err := variables.Create(&api.Variable{Path: "go/a", Items: map[string]string{"b": "c"}}, nil)
		must(err)
		check(made.ModifyIndex > 0 && made.ModifyIndex == made.CreateIndex, "made: %v", made.Metadata())
		found, _, err := variables.Read("go/a", nil)
		must(err)
		check(found.Items["b"] == "c" && found.ModifyIndex == made.ModifyIndex, "found: %v", found.Metadata())
		_, _, err = variables.CheckedCreate(&api.Variable{Path: "go/a", Items: map[string]string{"b": "d"}}, nil)
		var conflict api.ErrCASConflict
		check(errors.As(err, &conflict), "a conflict was expected, was %v", err)
		check(conflict.Conflict.ModifyIndex == made.ModifyIndex, "conflict: %v", conflict.Conflict.Metadata())
		found.Items["b"] = "d"
		changed, _, err := variables.CheckedUpdate(found, nil)
		must(err)
		check(changed.ModifyIndex > made.ModifyIndex && changed.CreateIndex == made.CreateIndex, "changed: %v", changed.Metadata())
		metas, _, err := variables.PrefixList("go/", nil)
		must(err)
		check(len(metas) == 1 && metas[0].Path == "go/a", "listed: %v", metas)
		_, err = variables.CheckedDelete("go/a", made.ModifyIndex, nil)
		check(errors.As(err, &conflict), "a conflict was expected, was %v", err)
		_, err = variables.Delete("go/a", nil)
		must(err)
		_, _, err = variables.Read("go/a", nil)
		check(errors.Is(err, api.ErrVariablePathNotFound), "read: %v", err)
		return nil
	}},
	{"var lock", func(all *world) error {
		variables, items := all.client.Variables(), api.VariableItems{"b": "c"}
		lock := &api.VariableLock{TTL: "15s", LockDelay: "20s"}
		held, _, err := variables.AcquireLock(&api.Variable{Path: "go/lock", Items: items, Lock: lock}, nil)
		must(err)
		check(held.LockID() != "" && held.Lock.TTL == "15s" && held.Lock.LockDelay == "20s", "acquired: %v", held.Metadata())
		check(held.Items["b"] == "c" && held.ModifyIndex > 0, "acquired: %v", held.Metadata())
		_, _, err = variables.AcquireLock(&api.Variable{Path: "go/lock", Lock: lock}, nil)
		off(err, 409, "")
		_, _, err = variables.Update(&api.Variable{Path: "go/lock", Items: items}, nil)
		off(err, 409, "")
		_, err = variables.Delete("go/lock", nil)
		check(err != nil, "a locked variable was deleted")
		renewed, _, err := variables.RenewLock(held, nil)
		must(err)
		check(renewed.Lock != nil && renewed.Lock.ID == held.LockID(), "renewed: %v", renewed)
		mine := &api.VariableLock{ID: held.LockID()}
		changed, _, err := variables.Update(&api.Variable{Path: "go/lock", Items: items, Lock: mine}, nil)
		must(err)
		check(changed.ModifyIndex > held.ModifyIndex && changed.LockID() == held.LockID(), "changed: %v", changed.Metadata())
		_, _, err = variables.ReleaseLock(&api.Variable{Path: "go/lock", Lock: mine}, nil)
		must(err)
		_, _, err = variables.RenewLock(held, nil)
		off(err, 409, "the lock does not hold")
		_, err = variables.Delete("go/lock", nil)
		must(err)
		return nil
	}},
	{"var lock: a lease", func(all *world) error {
		lock := &api.VariableLock{TTL: "15s", LockDelay: "15s"}
		handle := func() *api.Locks {
			made, err := all.client.Locks(api.WriteOptions{}, api.Variable{Path: "go/lease", Lock: lock})
			must(err)
			return made
		}
		mine, other := handle(), handle()
		ctx := context.Background()
		path, err := mine.Acquire(ctx)
		must(err)
		check(path == "go/lease", "acquired: %v", path)
		_, err = other.Acquire(ctx)
		check(errors.Is(err, api.ErrLockConflict), "acquired twice: %v", err)
		must(mine.Renew(ctx))
		must(mine.Release(ctx))
		check(errors.Is(mine.Renew(ctx), api.ErrLockConflict), "renewed after it was given back")
		ran := false
		leaser := all.client.NewLockLeaser(handle())
		must(leaser.Start(ctx, func(context.Context) error {
			ran = true
			return nil
		}))
		check(ran, "the leaser ran nothing")
		return nil
	}},
	{"volumes, plugins, scaling policies, quotas, recommendations", func(all *world) error {
		volumes, _, err := all.client.CSIVolumes().List(nil)
		must(err)
		plugins, _, err := all.client.CSIPlugins().List(nil)
		must(err)
		policies, _, err := all.client.Scaling().ListPolicies(nil)
		must(err)
		hosts, _, err := all.client.HostVolumes().List(nil, nil)
		must(err)
		check(len(volumes)+len(plugins)+len(policies)+len(hosts) == 0, "something of what is not built")
		_, _, err = all.client.Scaling().GetPolicy("x", nil)
		off(err, 404, "")
		_, _, err = all.client.CSIPlugins().Info("x", nil)
		off(err, 404, "")
		return nil
	}},
	{"a wrong login", func(all *world) error {
		_, _, err := all.client.Jobs().List(&api.QueryOptions{AuthToken: "public:wrong"})
		off(err, 403, "Permission denied")
		return nil
	}},
	{"an unknown path", func(all *world) error {
		_, err := all.client.Raw().Query("/v1/what", new(any), nil)
		off(err, 404, "")
		return nil
	}},
}

// decodes turns the payload of an event into its struct, as clients do.
func decodes(event api.Event) {
	var found any
	var err error
	switch event.Topic {
	case api.TopicJob:
		found, err = event.Job()
	case api.TopicEvaluation:
		found, err = event.Evaluation()
	case api.TopicAllocation:
		found, err = event.Allocation()
	case api.TopicNode:
		found, err = event.Node()
	case api.TopicDeployment:
		found, err = event.Deployment()
	}
	must(err)
	check(found != nil && event.Type != "" && event.Key != "" && event.Index > 0, "event %+v", event)
}
