package main

import (
	"context"
	"time"

	"github.com/hashicorp/nomad/api"
)

func firstNode(all *world) *api.Node {
	found, _, err := all.client.Nodes().List(nil)
	must(err)
	node, _, err := all.client.Nodes().Info(found[0].ID, nil)
	must(err)
	return node
}

// What `nomad node …` asks.
var nodeRows = []row{
	{"node status of all", func(all *world) error {
		found, _, err := all.client.Nodes().List(&api.QueryOptions{Params: map[string]string{"os": "true"}})
		must(err)
		one := found[0]
		check(len(one.ID) == 36 && one.Name != "" && one.Datacenter != "" && one.NodePool == "default", "stub %+v", one)
		check(one.Status == "ready" && one.SchedulingEligibility == "eligible" && !one.Drain, "stub %+v", one)
		check(one.Drivers["raw_exec"].Healthy, "driver")
		check(one.Attributes["os.name"] != "", "no name of the system")
		prefixed, _, err := all.client.Nodes().PrefixList(one.ID[:8])
		must(err)
		check(len(prefixed) == 1, "prefix finds %d", len(prefixed))
		filtered, _, err := all.client.Nodes().List(&api.QueryOptions{Filter: `Status == "down"`})
		must(err)
		check(len(filtered) == 0, "filter finds %d", len(filtered))
		return nil
	}},
	{"node status", func(all *world) error {
		node := firstNode(all)
		check(node.NodeResources.Cpu.CpuShares > 0, "cpu")
		check(node.NodeResources.Memory.MemoryMB > 0 && node.NodeResources.Disk.DiskMB > 0, "resources")
		check(node.ReservedResources.Memory.MemoryMB == 0, "reserved")
		check(node.HTTPAddr == "" && node.Status == "ready", "address %q", node.HTTPAddr)
		check(node.Events[0].Message != "" && !node.Events[0].Timestamp.IsZero(), "events")
		check(node.StatusUpdatedAt > 0, "time of the status")
		allocs, _, err := all.client.Nodes().Allocations(node.ID, nil)
		must(err)
		for _, one := range allocs {
			check(*one.Job.Version >= 0 && *one.Job.Type != "", "an allocation without its job")
			if one.ClientStatus == "running" {
				check(*one.Resources.CPU > 0 && *one.Resources.MemoryMB > 0 && *one.Resources.DiskMB >= 0, "resources")
				stats, err := all.client.Allocations().Stats(one, nil)
				must(err)
				check(stats.ResourceUsage.CpuStats != nil && stats.ResourceUsage.MemoryStats != nil, "statistics")
			}
		}
		stats, err := all.client.Nodes().Stats(node.ID, nil)
		must(err)
		check(stats.Memory.Total > 0 && len(stats.CPU) > 0, "statistics of the node")
		_, _, err = all.client.Nodes().Info("00000000-0000-0000-0000-000000000000", nil)
		off(err, 404, "node not found")
		return nil
	}},
	{"node eligibility", func(all *world) error {
		node := firstNode(all)
		answer, err := all.client.Nodes().ToggleEligibility(node.ID, false, nil)
		must(err)
		check(answer.NodeModifyIndex > 0, "index")
		check(firstNode(all).SchedulingEligibility == "ineligible", "eligible")
		_, err = all.client.Nodes().ToggleEligibility(node.ID, true, nil)
		must(err)
		check(firstNode(all).SchedulingEligibility == "eligible", "ineligible")
		return nil
	}},
	{"node meta", func(all *world) error {
		node := firstNode(all)
		request := &api.NodeMetaApplyRequest{NodeID: node.ID, Meta: map[string]*string{"rack": pointer("r1")}}
		_, err := all.client.Nodes().Meta().Apply(request, nil)
		must(err)
		found, err := all.client.Nodes().Meta().Read(node.ID, nil)
		must(err)
		check(found.Meta["rack"] == "r1" && *found.Dynamic["rack"] == "r1", "meta %+v", found)
		request.Meta["rack"] = nil
		_, err = all.client.Nodes().Meta().Apply(request, nil)
		must(err)
		found, err = all.client.Nodes().Meta().Read(node.ID, nil)
		must(err)
		check(found.Meta["rack"] == "", "meta %+v", found.Meta)
		return nil
	}},
	{"node drain", func(all *world) error {
		node := firstNode(all)
		options := &api.DrainOptions{
			DrainSpec: &api.DrainSpec{Deadline: 2 * time.Second},
			Meta:      map[string]string{"message": "new disks"},
		}
		answer, err := all.client.Nodes().UpdateDrainOpts(node.ID, options, nil)
		must(err)
		check(answer.NodeModifyIndex > 0, "index")
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		last := ""
		for one := range all.client.Nodes().MonitorDrain(ctx, node.ID, answer.NodeModifyIndex, false) {
			check(one.Level != api.MonitorMsgLevelError, "%s", one.Message)
			last = one.Message
		}
		check(ctx.Err() == nil, "the drain did not end; the last word was %q", last)
		drained := firstNode(all)
		check(drained.DrainStrategy == nil && !drained.Drain && drained.LastDrain != nil, "drain %+v", drained.DrainStrategy)
		check(drained.SchedulingEligibility == "ineligible", "eligible after its drain")
		_, err = all.client.Nodes().UpdateDrain(node.ID, nil, true, nil)
		must(err)
		check(firstNode(all).SchedulingEligibility == "eligible", "not eligible again")
		running(all, "web")
		return nil
	}},
	{"node eval, gc, purge, volumes", func(all *world) error {
		node := firstNode(all)
		_, _, err := all.client.Nodes().ForceEvaluate(node.ID, nil)
		must(err)
		must(all.client.Nodes().GC(node.ID, nil))
		_, _, err = all.client.Nodes().Purge(node.ID, nil)
		off(err, 501, "not built")
		volumes, err := all.client.Nodes().CSIVolumes(node.ID, nil)
		must(err)
		check(len(volumes) == 0, "volumes")
		return nil
	}},
}
