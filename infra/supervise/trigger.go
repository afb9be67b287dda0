package supervise

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/reprieve-dev/reprieve/handlers"
)

// ErrNotAsked: there was nobody to ask for a checkpoint. The message says what would have to be
// there. The newest complete checkpoint is all there will be.
var ErrNotAsked = fmt.Errorf("%w: nobody was asked for a checkpoint", handlers.ErrNotFound)

// askLimit is how long a command or an HTTP request may take when the notice has no deadline.
const askLimit = 5 * time.Minute

// Trigger is a way to ask the training job for a checkpoint now. The zero value asks nobody.
type Trigger struct {
	spec string
	ask  func(ctx context.Context, t Target) (how string, err error)
}

// Target is who is asked, and why.
type Target struct {
	PID    int     // the training command
	Socket *Socket // nil: there is none
	Notice Notice
}

// ParseTrigger reads a --trigger specification:
//
//	auto                  whoever polls the socket; else nobody
//	none                  nobody
//	signal:NAME[@WHO]     WHO is ranks (default), child or all; only processes that catch the signal get it
//	exec:CMD              run by /bin/sh -c, with the command's environment, REPRIEVE_CHILD_PID and REPRIEVE_NOTICE
//	http:URL              POST of the notice; a 2xx answer is a yes
//	file:PATH             the notice is put there, atomically
//
// NAME is with or without SIG, in any case. A notice is the JSON of Notice. Errors: ErrInvalid.
func ParseTrigger(spec string) (Trigger, error) {
	kind, rest, _ := strings.Cut(spec, ":")
	bad := func(why string) (Trigger, error) {
		return Trigger{}, fmt.Errorf("%w: trigger %q: %s", handlers.ErrInvalid, spec, why)
	}
	switch {
	case spec == "auto":
		return Trigger{spec, askSocket}, nil
	case spec == "none":
		return Trigger{spec: spec}, nil
	case kind == "signal":
		name, who, found := strings.Cut(rest, "@")
		if !found {
			who = "ranks"
		}
		if who != "ranks" && who != "child" && who != "all" {
			return bad("behind @ comes ranks, child or all")
		}
		name = strings.ToUpper(name)
		sig := unix.SignalNum("SIG" + strings.TrimPrefix(name, "SIG"))
		if sig == 0 {
			return bad("there is no such signal; write for example signal:USR1")
		}
		if sig == unix.SIGKILL || sig == unix.SIGSTOP {
			return bad("no process can catch this signal; use one that the trainer handles, for example signal:USR1")
		}
		return Trigger{spec, func(_ context.Context, t Target) (string, error) { return askSignal(t, sig, who) }}, nil
	case kind == "exec":
		if strings.TrimSpace(rest) == "" {
			return bad("give the command behind exec:")
		}
		return Trigger{spec, func(ctx context.Context, t Target) (string, error) { return askExec(ctx, t, rest) }}, nil
	case kind == "http" || kind == "https":
		address := rest
		if strings.HasPrefix(rest, "//") {
			address = spec // http://... is its own kind
		}
		u, err := url.Parse(address)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
			return bad("give a whole URL, for example http:http://localhost:8000/checkpoint")
		}
		return Trigger{spec, func(ctx context.Context, t Target) (string, error) { return askHTTP(ctx, t, u.String()) }}, nil
	case kind == "file":
		if rest == "" || strings.HasSuffix(rest, "/") || strings.ContainsRune(rest, 0) {
			return bad("give the path of a file behind file:")
		}
		path, err := filepath.Abs(rest)
		if err != nil {
			return bad("give an absolute path")
		}
		return Trigger{spec, func(_ context.Context, t Target) (string, error) { return askFile(t, path) }}, nil
	}
	return bad("use auto, none, signal:NAME, exec:CMD, http:URL or file:PATH")
}

// String is the specification.
func (t Trigger) String() string { return t.spec }

// Fire asks for a checkpoint. Whatever the kind, the notice is first announced on the socket: a
// trainer that polls it learns of every notice. Then the trigger's own way is taken. A signal or an
// announcement takes microseconds; a command or a request as long as it takes, up to the notice's
// deadline or ctx.
//
// Errors: ErrNotAsked when nobody was there; ErrUnavailable when asking failed, or was given up.
func (t Trigger) Fire(ctx context.Context, target Target) (how string, err error) {
	polled := 0
	if target.Socket != nil {
		polled = target.Socket.Subscribers()
		target.Notice = target.Socket.Announce(target.Notice)
	}
	if t.ask == nil {
		if polled > 0 {
			return askedSocket(polled), nil
		}
		return "", fmt.Errorf("%w: the trigger is none, and no trainer polls REPRIEVE_SOCKET", ErrNotAsked)
	}
	limit := target.Notice.Deadline
	if limit.IsZero() {
		limit = time.Now().Add(askLimit)
	}
	ctx, cancel := context.WithDeadline(ctx, limit)
	defer cancel()
	how, err = t.ask(ctx, target)
	if err != nil && polled > 0 {
		return askedSocket(polled), nil
	}
	return how, err
}

func askedSocket(n int) string { return fmt.Sprintf("socket, %d listening", n) }

func askSocket(context.Context, Target) (string, error) {
	return "", fmt.Errorf("%w: no trainer polls REPRIEVE_SOCKET; poll it, or give a --trigger of kind signal, exec, http or file", ErrNotAsked)
}

func askSignal(t Target, sig syscall.Signal, who string) (string, error) {
	name := unix.SignalName(sig)
	var asked []string
	for _, p := range catchers(t.PID, sig, who) {
		if p.signal(sig) {
			asked = append(asked, strconv.Itoa(p.pid))
		}
	}
	if len(asked) == 0 {
		whom := map[string]string{"ranks": "no process of the job", "child": "the command", "all": "no process of the job"}[who]
		verb := "catches"
		if who == "child" {
			verb = "does not catch"
		}
		return "", fmt.Errorf("%w: %s %s %s, which would end it; install a handler in the trainer, or use another --trigger", ErrNotAsked, whom, verb, name)
	}
	return name + " to " + strings.Join(asked, ", "), nil
}

// catchers returns the processes of the job that catch sig. For now a rank is the topmost process
// that does; recognising ranks by LOCAL_RANK and its like goes here.
func catchers(pid int, sig syscall.Signal, who string) []process {
	child, ok := readProcess(pid)
	if !ok {
		return nil
	}
	catches := func(p process) bool {
		yes, err := Catches(p.pid, sig)
		return err == nil && yes
	}
	if who != "all" && catches(child) {
		return []process{child} // no look at the tree: this is the fast path
	}
	if who == "child" {
		return nil
	}
	if who == "ranks" {
		if found := pick(child.tree(), catches, false); len(found) > 0 {
			return found
		}
	}
	return pick(append([]process{child}, descendants(pid)...), catches, who == "all")
}

// pick returns those that catch; those below one that does only if below is set. Parents come
// before their children.
func pick(procs []process, catches func(process) bool, below bool) []process {
	var found []process
	covered := map[int]bool{}
	for _, p := range procs {
		switch {
		case !below && covered[p.ppid]:
			covered[p.pid] = true
		case catches(p):
			covered[p.pid] = true
			found = append(found, p)
		}
	}
	return found
}

func askExec(ctx context.Context, t Target, command string) (string, error) {
	notice, err := json.Marshal(t.Notice)
	if err != nil {
		return "", fmt.Errorf("%w: encode the notice: %w", handlers.ErrInvalid, err)
	}
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", command)
	cmd.Env = append(environOf(t.PID), "REPRIEVE_CHILD_PID="+strconv.Itoa(t.PID), "REPRIEVE_NOTICE="+string(notice))
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%w: run the trigger's command: %w", handlers.ErrUnavailable, firstOf(context.Cause(ctx), err))
	}
	return "command " + command, nil
}

func environOf(pid int) []string {
	for range 20 {
		raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
		if err != nil {
			break // it has ended, or it is another user's
		}
		if len(raw) > 0 {
			return strings.Split(strings.TrimSuffix(string(raw), "\x00"), "\x00")
		}
		<-time.After(time.Millisecond) // it is empty in the moment of an exec
	}
	return os.Environ()
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func askHTTP(ctx context.Context, t Target, url string) (string, error) {
	notice, err := json.Marshal(t.Notice)
	if err != nil {
		return "", fmt.Errorf("%w: encode the notice: %w", handlers.ErrInvalid, err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(notice))
	if err != nil {
		return "", fmt.Errorf("%w: ask %s: %w", handlers.ErrInvalid, url, err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", fmt.Errorf("%w: ask %s: %w", handlers.ErrUnavailable, url, err)
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.CopyN(io.Discard, resp.Body, 64<<10) // so that the connection can be used again
	if resp.StatusCode/100 != 2 {
		return "", fmt.Errorf("%w: ask %s: it answered %s", handlers.ErrUnavailable, url, resp.Status)
	}
	return "POST " + url, nil
}

func askFile(t Target, path string) (string, error) {
	notice, err := json.Marshal(t.Notice)
	if err != nil {
		return "", fmt.Errorf("%w: encode the notice: %w", handlers.ErrInvalid, err)
	}
	tmp := fmt.Sprintf("%s.%d.tmp", path, os.Getpid())
	err = os.WriteFile(tmp, append(notice, '\n'), 0o644)
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		_ = os.Remove(tmp)
		return "", fmt.Errorf("%w: put the notice into %s: %w", handlers.ErrUnavailable, path, err)
	}
	return "file " + path, nil
}
