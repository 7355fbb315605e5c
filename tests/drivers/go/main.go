// A driver plugin in Go, written from docs/driver-plugins.md alone. A task is a shell command in a session of its own,
// kept by a copy of this program, which writes down how it ended.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const schema = `{"type": "object", "additionalProperties": false, "required": ["command"],
	"properties": {"command": {"type": "string", "minLength": 1}}}`

type request struct {
	ID     int64             `json:"id"`
	Verb   string            `json:"verb"`
	Run    string            `json:"run"`
	Signal string            `json:"signal"`
	Stdout string            `json:"stdout"`
	Stderr string            `json:"stderr"`
	Env    map[string]string `json:"env"`
	Config struct {
		Command string `json:"command"`
	} `json:"config"`
	Directories struct {
		Task string `json:"task"`
	} `json:"directories"`
}

type fault struct {
	Message     string `json:"message"`
	Recoverable bool   `json:"recoverable"`
}

type answer struct {
	ID     int64  `json:"id"`
	Result any    `json:"result,omitempty"`
	Error  *fault `json:"error,omitempty"`
}

type object = map[string]any

var (
	state    = os.Getenv("CARAVAN_DRIVER_STATE")
	out      sync.Mutex
	starting sync.Mutex
	signals  = map[string]syscall.Signal{
		"SIGHUP": syscall.SIGHUP, "SIGINT": syscall.SIGINT, "SIGQUIT": syscall.SIGQUIT, "SIGTERM": syscall.SIGTERM,
		"SIGKILL": syscall.SIGKILL, "SIGUSR1": syscall.SIGUSR1, "SIGUSR2": syscall.SIGUSR2,
	}
)

func main() {
	if len(os.Args) > 1 {
		keep(os.Args[1], os.Args[2], os.Args[3])
		return
	}
	peer, err := net.Dial("unix", os.Getenv("CARAVAN_DRIVER_SOCKET"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	lines := bufio.NewScanner(peer)
	lines.Buffer(make([]byte, 64*1024), 1<<20)
	for lines.Scan() {
		var asked request
		if json.Unmarshal(lines.Bytes(), &asked) == nil {
			go reply(peer, asked)
		}
	}
}

func reply(peer net.Conn, asked request) {
	said := answer{ID: asked.ID}
	result, err := perform(asked)
	if err != nil {
		said.Error = &fault{Message: err.Error()}
	} else {
		said.Result = result
	}
	line, _ := json.Marshal(said)
	out.Lock()
	defer out.Unlock()
	peer.Write(append(line, '\n'))
}

func perform(asked request) (any, error) {
	run := folder(asked.Run)
	switch asked.Verb {
	case "info":
		return object{
			"apis": []int{1}, "name": os.Getenv("CARAVAN_DRIVER_NAME"), "version": "go",
			"config_schema": json.RawMessage(schema),
		}, nil
	case "fingerprint":
		return object{"attributes": object{"language": "go"}}, nil
	case "start":
		return start(run, asked)
	case "recover":
		return look(run), nil
	case "wait":
		for run.kept() {
			time.Sleep(20 * time.Millisecond)
		}
		return run.end(), nil
	case "forget":
		return object{}, os.RemoveAll(string(run))
	case "signal":
		number, known := signals[asked.Signal]
		if !known {
			return nil, errors.New("unknown signal " + asked.Signal)
		}
		return object{"delivered": run.kill(number)}, nil
	case "stop":
		run.kill(syscall.SIGKILL)
		return object{}, nil
	case "abandon":
		os.MkdirAll(string(run), 0o700)
		if err := run.write("void", ""); err != nil {
			return nil, err
		}
		starting.Lock()
		defer starting.Unlock()
		run.kill(syscall.SIGKILL)
		return object{}, nil
	case "stats":
		return object{}, nil
	}
	return nil, errors.New("unknown verb " + asked.Verb)
}

// The records of one run.
type records string

func folder(key string) records { return records(filepath.Join(state, filepath.Base(key))) }

func (run records) has(name string) bool {
	_, err := os.Stat(filepath.Join(string(run), name))
	return err == nil
}

func (run records) number(name string) int {
	text, _ := os.ReadFile(filepath.Join(string(run), name))
	found, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return found
}

func (run records) write(name, text string) error {
	path := filepath.Join(string(run), name)
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// The pid of the task, which its keeper writes at once; 0: it never began.
func (run records) pid() int {
	for n := 0; n < 500 && run.has("begun"); n++ {
		if run.has("pid") {
			return run.number("pid")
		}
		time.Sleep(10 * time.Millisecond)
	}
	return 0
}

func (run records) kept() bool {
	return run.pid() != 0 && !run.has("exit") && alive(run.number("keeper"))
}

func (run records) kill(number syscall.Signal) bool {
	pid := run.pid()
	return pid != 0 && !run.has("exit") && alive(pid) && syscall.Kill(-pid, number) == nil
}

func (run records) end() object {
	if !run.has("exit") {
		return object{"exit_code": nil, "reason": "its keeper was killed"}
	}
	code := run.number("exit")
	found := object{"exit_code": code, "signal": 0}
	if code > 128 {
		found["signal"] = code - 128
	}
	return found
}

func alive(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil || pid == 0 {
		return false
	}
	rest := string(text)[strings.LastIndex(string(text), ") ")+2:]
	return !strings.ContainsAny(rest[:1], "ZX")
}

func start(run records, asked request) (any, error) {
	starting.Lock()
	defer starting.Unlock()
	if run.has("void") {
		return nil, errors.New("the run was abandoned")
	}
	if !run.has("begun") {
		if err := begin(run, asked); err != nil {
			return nil, err
		}
	}
	return object{"handle": string(run), "pid": run.pid()}, nil
}

func begin(run records, asked request) error {
	if err := os.MkdirAll(string(run), 0o700); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	keeper := exec.Command(self, asked.Config.Command, asked.Directories.Task, string(run))
	for path, to := range map[string]*io.Writer{asked.Stdout: &keeper.Stdout, asked.Stderr: &keeper.Stderr} {
		if path == "" {
			continue
		}
		flags := os.O_WRONLY | os.O_APPEND | os.O_CREATE | syscall.O_NOFOLLOW
		file, err := os.OpenFile(path, flags, 0o644)
		if err != nil {
			return err
		}
		defer file.Close()
		*to = file
	}
	for name, value := range asked.Env {
		keeper.Env = append(keeper.Env, name+"="+value)
	}
	keeper.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := run.write("begun", ""); err != nil {
		return err
	}
	if err := keeper.Start(); err != nil {
		return err
	}
	go keeper.Wait()
	return nil
}

func look(run records) object {
	if !run.has("begun") {
		return object{"state": "gone", "started": false}
	}
	if pid := run.pid(); pid != 0 && run.kept() {
		return object{"state": "running", "pid": pid}
	}
	if run.has("exit") {
		found := run.end()
		found["state"] = "exited"
		return found
	}
	return object{"state": "gone", "started": run.has("pid"), "reason": "its keeper was killed"}
}

// The keeper of a task: a process of its own, which outlives the driver.
func keep(command, directory, place string) {
	run := records(place)
	run.write("keeper", strconv.Itoa(os.Getpid()))
	task := exec.Command("/bin/sh", "-c", command)
	task.Dir, task.Stdout, task.Stderr = directory, os.Stdout, os.Stderr
	task.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if task.Start() != nil {
		run.write("exit", "127")
		return
	}
	run.write("pid", strconv.Itoa(task.Process.Pid))
	task.Wait()
	status := task.ProcessState.Sys().(syscall.WaitStatus)
	code := status.ExitStatus()
	if status.Signaled() {
		code = 128 + int(status.Signal())
	}
	run.write("exit", strconv.Itoa(code))
}
