package supervise_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/supervise"
)

func TestParseTrigger(t *testing.T) {
	for _, tc := range []struct{ spec, sentence string }{
		{"auto", ""}, {"none", ""},
		{"signal:USR1", ""}, {"signal:sigusr2@all", ""}, {"signal:Hup@child", ""}, {"signal:TERM@ranks", ""},
		{"exec:touch x", ""}, {"http:http://localhost:1/x", ""}, {"https://host/x", ""}, {"http://host", ""}, {"file:/tmp/x", ""}, {"file:x", ""},
		{"", "use auto, none"}, {"smoke", "use auto, none"}, {"autos", "use auto, none"}, {"auto:x", "use auto, none"},
		{"signal:", "no such signal"}, {"signal:NOPE", "no such signal"}, {"signal:SIGSIGUSR1", "no such signal"}, {"signal:10", "no such signal"},
		{"signal:KILL", "no process can catch"}, {"signal:stop", "no process can catch"},
		{"signal:USR1@everybody", "ranks, child or all"}, {"signal:USR1@", "ranks, child or all"},
		{"exec:", "give the command"}, {"exec: ", "give the command"},
		{"http:", "whole URL"}, {"http:localhost:80", "whole URL"}, {"http:ftp://x", "whole URL"}, {"http://", "whole URL"},
		{"file:", "path of a file"}, {"file:/tmp/", "path of a file"},
	} {
		got, err := supervise.ParseTrigger(tc.spec)
		if tc.sentence == "" {
			if err != nil || got.String() != tc.spec {
				t.Errorf("%q: got %v, %v", tc.spec, got, err)
			}
		} else if !errors.Is(err, handlers.ErrInvalid) || !strings.Contains(err.Error(), tc.sentence) {
			t.Errorf("%q: got %v, want %q", tc.spec, err, tc.sentence)
		}
	}
}

func FuzzParseTrigger(f *testing.F) {
	for _, spec := range []string{"auto", "none", "signal:USR1@all", "exec:true", "http:http://h/x", "file:/x", "http://[::1"} {
		f.Add(spec)
	}
	f.Fuzz(func(t *testing.T, spec string) {
		trigger, err := supervise.ParseTrigger(spec)
		if err == nil && trigger.String() != spec {
			t.Errorf("got %q, want %q", trigger, spec)
		}
		if err != nil && !errors.Is(err, handlers.ErrInvalid) {
			t.Errorf("%q: got %v, want ErrInvalid", spec, err)
		}
	})
}

func fire(t *testing.T, spec string, target supervise.Target) (string, error) {
	t.Helper()
	trigger, err := supervise.ParseTrigger(spec)
	if err != nil {
		t.Fatal(err)
	}
	return trigger.Fire(t.Context(), target)
}

// tree is a launcher that catches nothing, above a rank that catches USR1, above a worker that
// catches it too, and a bystander that does not.
const tree = `sh -c 'trap "echo rank" USR1; echo $$
	sh -c "trap \"echo worker\" USR1; echo \$\$; while :; do sleep 100 & wait; done" &
	sh -c "echo \$\$; exec sleep 100" &
	while :; do wait; done' & wait`

func TestSignalGoesToWhoCatchesIt(t *testing.T) {
	j := start(t, tree)
	pids := []int{j.pid(t), j.pid(t), j.pid(t)}
	rank := pids[0] // the rank speaks first; the two others in any order
	worker := pids[1]
	if catches, _ := supervise.Catches(worker, syscall.SIGUSR1); !catches {
		worker = pids[2]
	}
	for _, tc := range []struct {
		spec, how string
		says      []string
	}{
		{"signal:USR1", "SIGUSR1 to " + strconv.Itoa(rank), []string{"rank"}},
		{"signal:USR1@ranks", "SIGUSR1 to " + strconv.Itoa(rank), []string{"rank"}},
		{"signal:USR1@all", "SIGUSR1 to " + strconv.Itoa(rank) + ", " + strconv.Itoa(worker), []string{"rank", "worker"}},
	} {
		how, err := fire(t, tc.spec, supervise.Target{PID: j.PID()})
		if err != nil || how != tc.how {
			t.Errorf("%s: got %q, %v, want %q", tc.spec, how, err, tc.how)
		}
		var said []string
		for range tc.says {
			said = append(said, j.line(t))
		}
		slices.Sort(said)
		if !slices.Equal(said, tc.says) {
			t.Errorf("%s: heard by %v, want %v", tc.spec, said, tc.says)
		}
	}
	// Nobody is killed by a signal it does not catch.
	for _, spec := range []string{"signal:USR1@child", "signal:USR2", "signal:USR2@all"} {
		how, err := fire(t, spec, supervise.Target{PID: j.PID()})
		if !errors.Is(err, supervise.ErrNotAsked) || !strings.Contains(err.Error(), "install a handler") {
			t.Errorf("%s: got %q, %v, want ErrNotAsked with what to do", spec, how, err)
		}
	}
	for _, pid := range append(pids, j.PID()) {
		if !running(pid) {
			t.Errorf("process %d was killed", pid)
		}
	}
}

func TestExecTrigger(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	j := start(t, "echo up; exec sleep 100", "REPRIEVE_JOB=j1", "OUT="+out)
	j.line(t)
	target := supervise.Target{PID: j.PID(), Notice: supervise.Notice{Kind: "preempt", Action: supervise.ActionCheckpointStop}}
	if _, err := fire(t, `exec:echo "$REPRIEVE_JOB $REPRIEVE_CHILD_PID $REPRIEVE_NOTICE" >"$OUT"`, target); err != nil {
		t.Fatal(err)
	}
	got, _ := os.ReadFile(out)
	want := "j1 " + strconv.Itoa(j.PID()) + ` {"seq":0,"kind":"preempt","action":"checkpoint_and_stop"}` + "\n"
	if string(got) != want {
		t.Errorf("the command saw %q, want %q", got, want)
	}
	if _, err := fire(t, "exec:exit 3", target); !errors.Is(err, handlers.ErrUnavailable) || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("a command that fails: got %v", err)
	}
	// It is bounded, with everything it started.
	trigger, err := supervise.ParseTrigger("exec:sleep 1000 & sleep 1000")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := trigger.Fire(ctx, target); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a command that hangs: got %v", err)
	}
	eventually(t, "only the child is left", func() bool { return len(supervise.Descendants(os.Getpid())) == 1 })
}

func TestHTTPTrigger(t *testing.T) {
	status := http.StatusAccepted
	var got string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got = r.Method + " " + r.URL.Path + " " + string(body)
		w.WriteHeader(status)
	}))
	defer server.Close()
	target := supervise.Target{Notice: supervise.Notice{Kind: "stop", Action: supervise.ActionCheckpoint}}
	if _, err := fire(t, "http:"+server.URL+"/save", target); err != nil {
		t.Fatal(err)
	}
	if want := `POST /save {"seq":0,"kind":"stop","action":"checkpoint"}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	status = http.StatusInternalServerError
	if _, err := fire(t, "http:"+server.URL, target); !errors.Is(err, handlers.ErrUnavailable) || !strings.Contains(err.Error(), "500") {
		t.Errorf("a server that fails: got %v", err)
	}
	server.Close()
	if _, err := fire(t, server.URL, target); !errors.Is(err, handlers.ErrUnavailable) {
		t.Errorf("no server: got %v", err)
	}
	target.Notice.Deadline = time.Now().Add(-time.Second)
	if _, err := fire(t, server.URL, target); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("too late: got %v", err)
	}
}

func TestFileTrigger(t *testing.T) {
	dir := t.TempDir()
	path := write(t, filepath.Join(dir, "ask"), "an older notice, and a longer one than that which follows: it must be gone without a trace, all of it")
	target := supervise.Target{Notice: supervise.Notice{Kind: "stop", Action: supervise.ActionCheckpoint, Deadline: time.Now().Add(time.Hour).UTC()}}
	if _, err := fire(t, "file:"+path, target); err != nil {
		t.Fatal(err)
	}
	raw, _ := os.ReadFile(path)
	var got supervise.Notice
	if err := json.Unmarshal(raw, &got); err != nil || !got.Deadline.Equal(target.Notice.Deadline) || got.Kind != "stop" {
		t.Errorf("got %s, %v", raw, err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("left behind: %v", entries)
	}
	if _, err := fire(t, "file:"+filepath.Join(dir, "none", "ask"), target); !errors.Is(err, handlers.ErrUnavailable) {
		t.Errorf("no such directory: got %v", err)
	}
}

func TestNobodyToAsk(t *testing.T) {
	sock, _ := listen(t, supervise.Callbacks{})
	for _, spec := range []string{"auto", "none"} {
		_, err := fire(t, spec, supervise.Target{Socket: sock, Notice: supervise.Notice{Action: supervise.ActionCheckpoint}})
		if !errors.Is(err, supervise.ErrNotAsked) || !strings.Contains(err.Error(), "REPRIEVE_SOCKET") {
			t.Errorf("%s: got %v, want ErrNotAsked", spec, err)
		}
	}
	if _, err := (supervise.Trigger{}).Fire(t.Context(), supervise.Target{}); !errors.Is(err, supervise.ErrNotAsked) {
		t.Errorf("zero value: got %v, want ErrNotAsked", err)
	}
}

func TestAutoAsksASubscriber(t *testing.T) {
	sock, client := listen(t, supervise.Callbacks{})
	heard := make(chan string, 1)
	go func() {
		_, body := client.get("/notice?wait=30s")
		heard <- body
	}()
	eventually(t, "it is subscribed", func() bool { return sock.Subscribers() == 1 })
	// A signal trigger is no obstacle: who polls is asked.
	how, err := fire(t, "auto", supervise.Target{PID: os.Getpid(), Socket: sock, Notice: supervise.Notice{Kind: "preempt", Action: supervise.ActionCheckpoint}})
	if err != nil || how != "socket, 1 listening" {
		t.Errorf("got %q, %v", how, err)
	}
	if got, want := <-heard, `{"seq":1,"kind":"preempt","action":"checkpoint"}`; got != want {
		t.Errorf("heard %s, want %s", got, want)
	}
}

// BenchmarkSignal is the time from the notice to the signal's delivery, which has to stay far below
// a millisecond.
func BenchmarkSignal(b *testing.B) {
	const trainer = `trap : USR1; echo up; sleep 100 & while :; do wait; done`
	for name, script := range map[string]string{"child": trainer, "below a launcher": "sh -c '" + trainer + "' & wait"} {
		b.Run(name, func(b *testing.B) {
			r, w, err := os.Pipe()
			if err != nil {
				b.Fatal(err)
			}
			child, err := supervise.StartChild(supervise.Spec{Argv: []string{"sh", "-c", script}, Stdout: w})
			if err != nil {
				b.Fatal(err)
			}
			if _, err := r.Read(make([]byte, 8)); err != nil {
				b.Fatal(err)
			}
			trigger, _ := supervise.ParseTrigger("signal:USR1")
			for b.Loop() {
				if _, err := trigger.Fire(b.Context(), supervise.Target{PID: child.PID()}); err != nil {
					b.Fatal(err)
				}
			}
			if err := child.KillDescendants(context.Background()); err != nil {
				b.Fatal(err)
			}
			_, _ = r.Close(), w.Close()
		})
	}
}
