// A Caravan client in Go: the official NATS client and nothing of Caravan. CARAVAN_NATS_URL names the bus, user and
// password inside. Submits a job, follows it until it runs, stops it, follows it until it is over, and reads what the
// log says of that time.
package main

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/crypto/blake2b"
)

const (
	jobID = "café/menu.go"
	job   = `{"ID": "` + jobID + `", "Update": {"MinHealthyTime": 1000000000},
		"TaskGroups": [{"Name": "kitchen", "Count": 2, "Tasks": [{
		"Name": "sleep", "Driver": "raw_exec", "Config": {"command": "/bin/sleep", "args": ["3600"]},
		"Resources": {"CPU": 20, "MemoryMB": 16}}]}]}`
)

type verdict struct {
	Status string
	Seq    uint64
	Error  struct{ Code, Message string }
}

// numbers is what view.job.<token> holds.
type numbers struct {
	Seq     uint64
	Rollout struct{ Status, Reason string }
}

type record struct {
	Seq  uint64 `json:"seq"`
	Kind string `json:"kind"`
	Sum  string `json:"sum"`
	Prev string `json:"prev,omitempty"`
}

// token spells an id as one token of a subject.
func token(id string) string {
	var out strings.Builder
	for _, b := range []byte(id) {
		if b == '-' || b == '_' || '0' <= b && b <= '9' || 'A' <= b && b <= 'Z' || 'a' <= b && b <= 'z' {
			out.WriteByte(b)
		} else {
			fmt.Fprintf(&out, "~%02X", b)
		}
	}
	return out.String()
}

// submit asks for a verdict, again under the same id while there is none.
func submit(nc *nats.Conn, verb, members string) uint64 {
	message := fmt.Sprintf(`{%s, "SubmissionID": "go-%s"}`, members, nats.NewInbox()[len("_INBOX."):])
	for range 10 {
		reply, err := nc.Request("api.jobs."+verb, []byte(message), 6*time.Second)
		if err != nil {
			log.Printf("no service answered: %v", err)
			time.Sleep(500 * time.Millisecond)
			continue
		}
		var said verdict
		must(json.Unmarshal(reply.Data, &said))
		if said.Status == "accepted" {
			return said.Seq
		}
		if said.Status == "refused" && said.Error.Code != "unavailable" {
			log.Fatalf("refused: %s", said.Error.Message)
		}
	}
	log.Fatal("no verdict")
	return 0
}

// follow waits until the job's numbers, not older than seq, are as wanted, and returns the seq they show.
func follow(nc *nats.Conn, subject string, seq uint64, reached func(numbers) bool) uint64 {
	// Listen first, then read the last value: what changes in between is not missed.
	updates, err := nc.SubscribeSync(subject)
	must(err)
	defer func() { must(updates.Unsubscribe()) }()
	for {
		message, err := nc.Request("$JS.API.DIRECT.GET.VIEW."+subject, nil, 5*time.Second)
		for err == nil {
			var shown numbers
			// Without a body it is a status: nothing is published under this subject yet.
			if len(message.Data) > 0 {
				must(json.Unmarshal(message.Data, &shown))
			}
			if shown.Seq >= seq && reached(shown) {
				return shown.Seq
			}
			message, err = updates.NextMsg(5 * time.Second)
		}
		log.Printf("reading the last value again: %v", err)
	}
}

func isRunning(shown numbers) bool {
	if shown.Rollout.Status == "failed" {
		log.Fatalf("failed: %s", shown.Rollout.Reason)
	}
	return shown.Rollout.Status == "running"
}

func isOver(shown numbers) bool {
	return shown.Rollout.Status == "stopped" || shown.Rollout.Status == "complete"
}

// readLog reads records by one batched direct get, and checks their checksums and their chain.
func readLog(nc *nats.Conn, first, last uint64) (records []record) {
	inbox := nc.NewInbox()
	answers, err := nc.SubscribeSync(inbox)
	must(err)
	request := fmt.Sprintf(`{"seq": %d, "batch": %d}`, first, last-first+1)
	must(nc.PublishRequest("$JS.API.DIRECT.GET.LOG_1", inbox, []byte(request)))
	head := ""
	for {
		message, err := answers.NextMsg(5 * time.Second)
		must(err)
		if message.Header.Get("Status") != "" {
			return records // 204 ends the batch.
		}
		var one record
		must(json.Unmarshal(message.Data, &one))
		hash, err := blake2b.New(16, nil)
		must(err)
		hash.Write(message.Data[:len(message.Data)-42])
		if one.Sum != hex.EncodeToString(hash.Sum(nil)) || head != "" && one.Prev != head {
			log.Fatalf("the log is damaged: %s", message.Data)
		}
		head, one.Prev = one.Sum, ""
		one.Seq, err = strconv.ParseUint(message.Header.Get("Nats-Sequence"), 10, 64)
		must(err)
		records = append(records, one)
	}
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	servers := os.Getenv("CARAVAN_NATS_URL")
	first, err := url.Parse(strings.Split(servers, ",")[0])
	must(err)
	// A user may listen behind its own name only.
	prefix := nats.CustomInboxPrefix("_INBOX." + first.User.Username())
	nc, err := nats.Connect(servers, prefix)
	for pause := 500 * time.Millisecond; err != nil; pause = min(2*pause, 8*time.Second) {
		log.Printf("waiting for the bus: %v", err)
		time.Sleep(pause)
		nc, err = nats.Connect(servers, prefix)
	}
	defer nc.Close()
	subject := "view.job." + token(jobID)
	submitted := submit(nc, "submit", `"Job": `+job)
	running := follow(nc, subject, submitted, isRunning)
	stopped := follow(nc, subject, submit(nc, "stop", `"JobID": "`+jobID+`"`), isOver)
	must(json.NewEncoder(os.Stdout).Encode(map[string]any{
		"submitted": submitted, "running": running, "stopped": stopped, "records": readLog(nc, submitted, stopped),
	}))
}
