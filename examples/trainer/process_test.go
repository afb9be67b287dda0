package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// asTrainer makes the test binary be the trainer.
const asTrainer = "TRAINER_TEST_IS_THE_TRAINER"

func TestMain(m *testing.M) {
	if os.Getenv(asTrainer) != "" {
		main()
	}
	os.Exit(m.Run())
}

// process is a running trainer. Its lines are read one by one.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	lines  *bufio.Scanner
	stderr bytes.Buffer
}

func start(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.CommandContext(t.Context(), os.Args[0], args...)}
	p.cmd.Env = append(append(os.Environ(), asTrainer+"=1", "GORACE=atexit_sleep_ms=0", "REPRIEVE_SOCKET=", "REPRIEVE_RESUMED=", "REPRIEVE_CHECKPOINT_DIR="), env...)
	p.cmd.Stderr = &p.stderr
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.lines = bufio.NewScanner(stdout)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return p
}

// until reads up to the next line that matches and returns its first group, or the match.
func (p *process) until(pattern string) string {
	p.t.Helper()
	re := regexp.MustCompile(pattern)
	for p.lines.Scan() {
		if m := re.FindStringSubmatch(p.lines.Text()); m != nil {
			return m[len(m)-1]
		}
	}
	p.t.Fatalf("the trainer never said %q; stderr: %s", pattern, p.stderr.String())
	return ""
}

func (p *process) signal(sig os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.t.Fatal(err)
	}
}

// exit waits for the end; it returns the exit code, -1 after a signal, and the rest of the output.
func (p *process) exit() (int, string) {
	p.t.Helper()
	var rest strings.Builder
	for p.lines.Scan() {
		fmt.Fprintln(&rest, p.lines.Text())
	}
	_ = p.cmd.Wait()
	return p.cmd.ProcessState.ExitCode(), rest.String()
}

func (p *process) exits(want int) {
	p.t.Helper()
	if got, rest := p.exit(); got != want {
		p.t.Fatalf("exit code: got %d, want %d\n%s%s", got, want, rest, p.stderr.String())
	}
}

// model trains to the end in one go and returns the model.
func model(t *testing.T, args ...string) []byte {
	t.Helper()
	dir := t.TempDir()
	out := filepath.Join(dir, "model")
	start(t, nil, append([]string{"-dir", filepath.Join(dir, "c"), "-out", out}, args...)...).exits(0)
	return contents(t, out)
}

func contents(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestSameSeedSameModel(t *testing.T) {
	t.Parallel()
	want := model(t, "-steps", "200")
	if len(want) != 8*count {
		t.Errorf("model: got %d bytes, want %d", len(want), 8*count)
	}
	if got := model(t, "-steps", "200", "-every", "7", "-pad-mb", "1", "-quiet"); !bytes.Equal(got, want) {
		t.Error("the same seed gave another model")
	}
	if got := model(t, "-steps", "200", "-seed", "2"); bytes.Equal(got, want) {
		t.Error("another seed gave the same model")
	}
}

// Ended again and again at any moment, by whatever comes, it ends with the same model.
func TestEndedAnywhere(t *testing.T) {
	t.Parallel()
	const steps = "600"
	want := model(t, "-steps", steps)
	for round := range uint64(3) {
		r := rand.New(rand.NewPCG(9, round))
		dir := t.TempDir()
		out := filepath.Join(dir, "model")
		if err := os.Mkdir(filepath.Join(dir, "c"), 0o755); err != nil {
			t.Fatal(err)
		}
		args := []string{"-dir", filepath.Join(dir, "c"), "-out", out, "-steps", steps, "-every", "20", "-step-time", "100us"}
		for range 4 {
			p := start(t, nil, args...)
			for range r.IntN(6) {
				p.until(`^saved|^accuracy`)
			}
			sig := []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM}[r.IntN(2)]
			p.signal(sig)
			if code, rest := p.exit(); code > 0 {
				t.Fatalf("ended with signal %d: exit %d\n%s%s", sig, code, rest, p.stderr.String())
			}
		}
		// As if it had been killed while it saved.
		if err := os.WriteFile(filepath.Join(dir, "c", tempName+checkpointName(40)+"-1"), []byte("PK"), 0o600); err != nil {
			t.Fatal(err)
		}
		start(t, nil, args...).exits(0)
		if !bytes.Equal(contents(t, out), want) {
			t.Errorf("round %d: the model differs", round)
		}
		files, err := os.ReadDir(filepath.Join(dir, "c"))
		if err != nil || len(files) > 3 {
			t.Errorf("round %d: %d files are left (%v), want 3 checkpoints", round, len(files), err)
		}
	}
}

func TestSignals(t *testing.T) {
	t.Parallel()
	slow := []string{"-step-time", "2ms", "-every", "100000", "-steps", "100000"}
	begin := func(t *testing.T, args ...string) (*process, string) {
		dir := t.TempDir()
		p := start(t, nil, slices.Concat([]string{"-dir", dir}, slow, args)...)
		p.until(`^step 1 `)
		return p, dir
	}
	t.Run("USR1 saves and goes on", func(t *testing.T) {
		t.Parallel()
		p, dir := begin(t)
		for range 2 {
			p.signal(syscall.SIGUSR1)
			step, _ := strconv.ParseInt(p.until(`^saved step (\d+)`), 10, 64)
			if _, err := restore(filepath.Join(dir, checkpointName(step)), 1500); err != nil {
				t.Error(err)
			}
		}
		p.signal(syscall.SIGTERM)
		at := p.until(`^stopped at step (\d+)`)
		p.exits(0)
		p = start(t, nil, "-dir", dir, "-steps", "1")
		if from := p.until(`^resumed from step (\d+)`); from != at {
			t.Errorf("resumed from step %s, want %s", from, at)
		}
		p.exits(0)
	})
	t.Run("USR1 is not heard with -ask none", func(t *testing.T) {
		t.Parallel()
		p, dir := begin(t, "-ask", "none")
		p.signal(syscall.SIGUSR1)
		p.until(`^step \d+  epoch 1 `)
		p.signal(syscall.SIGKILL)
		p.exits(-1)
		if own, err := checkpoints(dir); err != nil || len(own) > 0 {
			t.Errorf("got %v (%v), want no checkpoint", own, err)
		}
	})
	t.Run("TERM with -on-term exit", func(t *testing.T) {
		t.Parallel()
		p, dir := begin(t, "-on-term", "exit")
		p.signal(syscall.SIGTERM)
		p.exits(-1)
		if own, err := checkpoints(dir); err != nil || len(own) > 0 {
			t.Errorf("got %v (%v), want no checkpoint", own, err)
		}
	})
	t.Run("TERM with -on-term ignore", func(t *testing.T) {
		t.Parallel()
		p, _ := begin(t, "-on-term", "ignore")
		p.signal(syscall.SIGTERM)
		p.until(`^step \d+  epoch 1 `)
		p.signal(syscall.SIGUSR1)
		p.until(`^saved step`)
		p.signal(syscall.SIGKILL)
		p.exits(-1)
	})
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	bad := filepath.Join(t.TempDir(), checkpointName(7))
	if err := os.WriteFile(bad, []byte("PK, but no zip"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		env  []string
		args []string
		want int
		says string
	}{
		{"argument", nil, []string{"train"}, 2, `"train"`},
		{"unknown flag", nil, []string{"-lr", "1"}, 2, "-lr"},
		{"no steps", nil, []string{"-steps", "0"}, 2, "-steps"},
		{"keep none", nil, []string{"-keep", "0"}, 2, "-keep"},
		{"negative pad", nil, []string{"-pad-mb", "-1"}, 2, "-pad-mb"},
		{"unknown ask", nil, []string{"-ask", "mail"}, 2, "-ask"},
		{"unknown on-term", nil, []string{"-on-term", "pray"}, 2, "-on-term"},
		{"fail at", nil, []string{"-fail-at", "5", "-steps", "10"}, 1, "step 5"},
		{"directory is a file", nil, []string{"-dir", bad}, 1, bad},
		{"model cannot be written", nil, []string{"-steps", "1", "-out", filepath.Join(bad, "model")}, 1, bad},
		{"own checkpoint is bad", nil, []string{"-dir", filepath.Dir(bad)}, 3, bad},
		{"restored checkpoint is bad", []string{"REPRIEVE_RESUMED=1", "REPRIEVE_RESUME_PATH=" + bad}, nil, 3, bad},
		{"restored checkpoint is missing", []string{"REPRIEVE_RESUMED=1", "REPRIEVE_RESUME_PATH=" + bad + "x"}, nil, 3, bad + "x"},
		{"restored without a path", []string{"REPRIEVE_RESUMED=1", "REPRIEVE_RESUME_PATH="}, nil, 3, "REPRIEVE_RESUME_PATH"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			env := append([]string{"REPRIEVE_CHECKPOINT_DIR=" + t.TempDir()}, tc.env...)
			p := start(t, env, tc.args...)
			if code, rest := p.exit(); code != tc.want || !strings.Contains(p.stderr.String(), tc.says) {
				t.Errorf("got exit %d, want %d, saying %q\n%s%s", code, tc.want, tc.says, rest, p.stderr.String())
			}
		})
	}
}

// What the supervisor restored wins over what is in the directory, and -fail-at is for first attempts.
func TestResumePath(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	start(t, nil, "-dir", dir, "-steps", "40", "-every", "10").exits(0)
	env := []string{"REPRIEVE_CHECKPOINT_DIR=" + dir, "REPRIEVE_RESUMED=1", "REPRIEVE_RESUME_PATH=" + filepath.Join(dir, checkpointName(20))}
	p := start(t, env, "-steps", "50", "-fail-at", "30")
	p.until(`^resumed from step 20 `)
	p.exits(0)
}

// reprieve is the other end of the socket.
type reprieve struct {
	env     []string
	notices chan string // one answer to GET /notice each
	said    chan string // what was posted: path, step
}

func serve(t *testing.T) *reprieve {
	t.Helper()
	// Not t.TempDir: a socket's path may have 107 bytes.
	dir, err := os.MkdirTemp("", "t")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := &reprieve{env: []string{"REPRIEVE_SOCKET=" + socket}, notices: make(chan string), said: make(chan string, 1000)}
	mux := http.NewServeMux()
	seq := 0
	mux.HandleFunc("GET /notice", func(w http.ResponseWriter, r *http.Request) {
		if wait, after := r.FormValue("wait"), r.FormValue("after"); wait != "30s" || after != strconv.Itoa(seq) {
			t.Errorf("GET /notice: got wait=%s after=%s, want 30s and %d", wait, after, seq)
		}
		select {
		case action := <-s.notices:
			if action == "" {
				w.WriteHeader(http.StatusNoContent)
				return
			}
			seq++
			_ = json.NewEncoder(w).Encode(map[string]any{"seq": seq, "kind": "preempt", "action": action})
		case <-r.Context().Done():
		}
	})
	mux.HandleFunc("POST /", func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			Path string
			Step int64
			Loss float64
		}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Errorf("POST %s: %v", r.URL.Path, err)
		}
		if r.URL.Path == "/saved" {
			if _, err := restore(body.Path, 1500); err != nil {
				t.Errorf("said to be saved: %v", err)
			}
			if want := checkpointName(body.Step); filepath.Base(body.Path) != want {
				t.Errorf("saved: got %s, want %s", body.Path, want)
			}
		}
		if r.URL.Path != "/progress" {
			s.said <- fmt.Sprintf("%s %d", r.URL.Path, body.Step)
		} else if body.Step < 1 || body.Loss <= 0 {
			t.Errorf("progress: got %+v", body)
		}
		w.WriteHeader(http.StatusNoContent)
	})
	server := httptest.NewUnstartedServer(mux)
	_ = server.Listener.Close()
	server.Listener = l
	server.Start()
	t.Cleanup(server.Close)
	return s
}

func (s *reprieve) all() []string {
	close(s.said)
	var all []string
	for said := range s.said {
		all = append(all, said)
	}
	return all
}

func TestSocket(t *testing.T) {
	t.Parallel()
	s, dir := serve(t), t.TempDir()
	args := []string{"-dir", dir, "-every", "100000", "-step-time", "1ms"}
	p := start(t, s.env, append(args, "-steps", "100000")...)
	s.notices <- ""
	s.notices <- "checkpoint"
	first := p.until(`^saved step (\d+)`)
	s.notices <- "checkpoint_and_stop"
	last := p.until(`^saved step (\d+)`)
	p.until("^stopped at step " + last)
	p.exits(0)
	if got, want := s.all(), []string{"/saved " + first, "/saved " + last}; !slices.Equal(got, want) {
		t.Errorf("stopped: got %q, want %q", got, want)
	}

	s = serve(t)
	p = start(t, s.env, append(args, "-steps", "1", "-quiet")...)
	p.exits(0)
	if got, want := s.all(), []string{"/done 0"}; !slices.Equal(got, want) {
		t.Errorf("finished: got %q, want %q", got, want)
	}

	s = serve(t)
	p = start(t, s.env, "-dir", t.TempDir(), "-steps", "10", "-fail-at", "5", "-every", "2")
	p.exits(1)
	if got, want := s.all(), []string{"/saved 2", "/saved 4"}; !slices.Equal(got, want) {
		t.Errorf("failed: got %q, want %q", got, want)
	}
}

// A supervisor that is gone, answers with errors or does not answer at all disturbs nothing.
func TestSocketInTrouble(t *testing.T) {
	t.Parallel()
	want := model(t, "-steps", "100")
	for name, answer := range map[string]func(net.Conn){
		"gone": nil,
		"errors": func(c net.Conn) {
			_, _ = c.Read(make([]byte, 4096))
			_, _ = c.Write([]byte("HTTP/1.1 500 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"))
			_ = c.Close()
		},
		"noise":  func(c net.Conn) { _, _ = c.Write([]byte("?")); _ = c.Close() },
		"silent": func(net.Conn) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, err := os.MkdirTemp("", "t")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = os.RemoveAll(dir) }()
			socket := filepath.Join(dir, "s")
			if answer != nil {
				l, err := net.Listen("unix", socket)
				if err != nil {
					t.Fatal(err)
				}
				stopped := make(chan struct{})
				go func() {
					defer close(stopped)
					for {
						c, err := l.Accept()
						if err != nil {
							return
						}
						defer func() { _ = c.Close() }()
						answer(c)
					}
				}()
				defer func() { _ = l.Close(); <-stopped }()
			}
			out := filepath.Join(dir, "model")
			p := start(t, []string{"REPRIEVE_SOCKET=" + socket}, "-dir", filepath.Join(dir, "c"), "-steps", "100", "-every", "1", "-keep", "1", "-out", out)
			p.until(`^accuracy`)
			said := time.Now()
			p.exits(0)
			if took := time.Since(said); took > 2*deliverWithin {
				t.Errorf("it took %s to exit, want about %s", took, deliverWithin)
			}
			if !bytes.Equal(contents(t, out), want) {
				t.Error("the model differs")
			}
		})
	}
}
