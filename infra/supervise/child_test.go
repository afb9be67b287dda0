package supervise_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/supervise"
)

func TestExit(t *testing.T) {
	for _, tc := range []struct {
		script string
		want   supervise.Exit
		word   string
	}{
		{"exit 0", supervise.Exit{}, "exit status 0"},
		{"exit 3", supervise.Exit{Code: 3}, "exit status 3"},
		{"kill -KILL $$", supervise.Exit{Code: 137, Signal: syscall.SIGKILL}, "SIGKILL"},
		{"kill -TERM $$", supervise.Exit{Code: 143, Signal: syscall.SIGTERM}, "SIGTERM"},
	} {
		j := start(t, tc.script)
		<-j.Done()
		if got := j.Exit(); got != tc.want || got.String() != tc.word {
			t.Errorf("%s: got %+v (%s), want %+v (%s)", tc.script, got, got, tc.want, tc.word)
		}
		if err := j.Signal(syscall.SIGUSR1); err != nil {
			t.Errorf("signal to an ended child: %v", err)
		}
	}
}

func TestStartFailures(t *testing.T) {
	dir := t.TempDir()
	plain := write(t, filepath.Join(dir, "plain"), "#!/bin/sh\n")
	noFormat := write(t, filepath.Join(dir, "noformat"), "\x00\x01garbage")
	noInterpreter := write(t, filepath.Join(dir, "nointerp"), "#!/no/such/interpreter\n")
	for _, path := range []string{noFormat, noInterpreter} {
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		argv     []string
		want     error
		sentence string
	}{
		{nil, handlers.ErrInvalid, "no command to run"},
		{[]string{"no-such-command-here"}, supervise.ErrNoCommand, `"no-such-command-here" is not in PATH`},
		{[]string{filepath.Join(dir, "none")}, supervise.ErrNoCommand, "does not exist"},
		{[]string{plain}, supervise.ErrNotExecutable, "chmod +x"},
		{[]string{dir}, supervise.ErrNotExecutable, "is a directory"},
		{[]string{noFormat}, supervise.ErrNotExecutable, "#!/bin/sh"},
		{[]string{noInterpreter}, supervise.ErrNoCommand, "interpreter"},
		{[]string{"/bin/true", strings.Repeat("x", 4<<20)}, handlers.ErrInvalid, "too long"},
	} {
		_, err := supervise.StartChild(supervise.Spec{Argv: tc.argv})
		if !errors.Is(err, tc.want) || handlers.Class(err) != handlers.ErrInvalid || !strings.Contains(err.Error(), tc.sentence) {
			t.Errorf("start %.80q: got %.200v, want %v with %q", tc.argv, err, tc.want, tc.sentence)
		}
	}
	if _, err := supervise.StartChild(supervise.Spec{Argv: []string{"true"}, Dir: plain}); !errors.Is(err, handlers.ErrInvalid) {
		t.Errorf("working directory that is a file: got %v", err)
	}
	if err := supervise.LookPath("sh"); err != nil {
		t.Errorf("LookPath(sh): %v", err)
	}
}

func TestOutputPassesUntouched(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	extra, err := os.Open("/dev/zero")
	if err != nil {
		t.Fatal(err)
	}
	defer extra.Close()
	child, err := supervise.StartChild(supervise.Spec{
		Argv: []string{"sh", "-c", `printf 'a\000\377\r\n'; pwd; printf %s "$X"; head -c 2 <&3; cat; ps=$(cut -d' ' -f5 /proc/$$/stat); [ $ps = $$ ] && echo own`},
		Env:  []string{"PATH=" + os.Getenv("PATH"), "X=y"}, Dir: "/", Stdout: w, ExtraFiles: []*os.File{extra},
	})
	if err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	got, _ := io.ReadAll(r)
	if want := []byte("a\x00\xff\r\n/\ny\x00\x00own\n"); !bytes.Equal(got, want) {
		t.Errorf("output: got %q, want %q", got, want)
	}
	if err := child.KillDescendants(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestStopLetsTheJobFinish(t *testing.T) {
	file := filepath.Join(t.TempDir(), "saved")
	// The launcher does not pass TERM on; the trainer below it must still hear it, once.
	j := start(t, `trap 'wait; exit 5' TERM
		sh -c 'trap "echo once >>$FILE; exit 0" TERM; echo up; while :; do read x </dev/zero & wait; done' &
		wait`, "FILE="+file)
	j.line(t)
	if err := j.Stop(t.Context(), time.Minute); err != nil {
		t.Fatal(err)
	}
	if got := j.Exit(); got.Code != 5 {
		t.Errorf("the launcher: got %v, want 5", got)
	}
	if got, _ := os.ReadFile(file); string(got) != "once\n" {
		t.Errorf("the trainer: got %q, want one TERM", got)
	}
}

// forever is a script that ignores TERM and does not end; it says its pid.
const forever = `trap "" TERM; echo $$; while :; do sleep 100; done`

func TestStopLeavesNobody(t *testing.T) {
	for _, tc := range []struct {
		name, script string
		pids         int
	}{
		{"ignores TERM", forever, 1},
		{"ignoring grandchild", `sh -c '` + forever + `' & echo $$; wait`, 2},
		{"double fork", `(sh -c '` + forever + `' &) ; echo $$; exec sleep 100`, 2},
		{"daemon in its own session", `(setsid sh -c '` + forever + `' &) ; echo $$; exec sleep 100`, 2},
		{"stopped", `sh -c 'kill -STOP $$' & sh -c 'trap "" TERM; kill -STOP $$' & echo $$; echo $!; wait`, 2},
		{"the child has ended", `(setsid sh -c '` + forever + `' &); exit 0`, 1},
		{"keeps forking", `trap "" TERM; echo $$; while :; do (trap "" TERM; sleep 100) & sleep 0.001; done`, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			j := start(t, tc.script)
			var pids []int
			for range tc.pids {
				pids = append(pids, j.pid(t))
			}
			if err := j.Stop(t.Context(), 20*time.Millisecond); err != nil {
				t.Fatal(err)
			}
			for _, pid := range pids {
				if running(pid) {
					t.Errorf("process %d still runs", pid)
				}
			}
			if got := supervise.Descendants(os.Getpid()); len(got) > 0 {
				t.Errorf("descendants left: %v", got)
			}
		})
	}
}

// A process that forks and exits all the time never stands still to be counted.
func TestStopCatchesARunner(t *testing.T) {
	script := write(t, filepath.Join(t.TempDir(), "runner.sh"), "#!/bin/sh\nsetsid /bin/sh $0 &\n")
	j := start(t, "echo up; exec /bin/sh "+script, "RUNNER="+script)
	j.line(t)
	eventually(t, "the child handed over", func() bool { return !running(j.PID()) })
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	if err := j.KillDescendants(ctx); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		if got := supervise.ProcessesWithEnv("RUNNER", script); len(got) > 0 {
			t.Fatalf("still running: %v", got)
		}
	}
	if got := supervise.Descendants(os.Getpid()); len(got) > 0 {
		t.Errorf("descendants left: %v", got)
	}
}

func TestStopIsBoundedByContext(t *testing.T) {
	j := start(t, forever)
	pid := j.pid(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	begun := time.Now()
	err := j.Stop(ctx, time.Hour) // KILL is sent all the same; only the wait for it is cut
	if took := time.Since(begun); took > 10*time.Second {
		t.Errorf("took %v", took)
	}
	if err != nil && !errors.Is(err, supervise.ErrLeftovers) {
		t.Errorf("got %v, want nil or ErrLeftovers", err)
	}
	eventually(t, "it is dead", func() bool { return !running(pid) })
}

func TestOrphansAreReaped(t *testing.T) {
	j := start(t, `for i in 1 2 3 4 5; do (sh -c 'echo $$' &) ; done; wait; exec sleep 100`)
	for range 5 {
		pid := j.pid(t)
		eventually(t, "the orphan is reaped", func() bool {
			_, err := os.Stat("/proc/" + strconv.Itoa(pid))
			return os.IsNotExist(err)
		})
	}
}

func TestOthersMayWaitBesideIt(t *testing.T) {
	start(t, `while :; do (true &); sleep 0.001; done`)
	var group sync.WaitGroup
	for i := range 4 {
		group.Go(func() {
			for range 10 {
				err := exec.Command("sh", "-c", fmt.Sprintf("exit %d", i)).Run()
				var exit *exec.ExitError
				if i == 0 && err != nil || i > 0 && (!errors.As(err, &exit) || exit.ExitCode() != i) {
					t.Errorf("os/exec: got %v, want exit status %d", err, i)
				}
			}
		})
	}
	group.Wait()
}

// TestHelperProcess is not a test: it is the supervisor that gets killed in the next one.
func TestHelperProcess(t *testing.T) {
	if os.Getenv("SUPERVISE_HELPER") != "1" {
		return
	}
	child, err := supervise.StartChild(supervise.Spec{Argv: strings.Fields(os.Getenv("SUPERVISE_ARGV")), Stdin: os.Stdin})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println(child.PID())
	<-child.Done()
	fmt.Println(child.Exit())
}

func TestChildDiesWithASupervisorThatIsKilled(t *testing.T) {
	cmd := exec.Command(os.Args[0], "-test.run=^TestHelperProcess$")
	cmd.Env = append(os.Environ(), "SUPERVISE_HELPER=1", "SUPERVISE_ARGV=sleep 100")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Fscan(out, &pid); err != nil {
		t.Fatal(err)
	}
	if !running(pid) {
		t.Fatal("the child is not there")
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	eventually(t, "the child is dead", func() bool { return !running(pid) })
}

// A child that reads from the terminal gets an error; without care it would be stopped for good.
func TestChildReadsFromATerminal(t *testing.T) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip("no pseudo terminals here")
	}
	defer master.Close()
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no pseudo terminals here")
	}
	defer slave.Close()
	cmd := exec.Command(os.Args[0], "-test.run=^TestHelperProcess$")
	cmd.Env = append(os.Environ(), "SUPERVISE_HELPER=1", "SUPERVISE_ARGV=cat")
	cmd.Stdin = slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	out, err := cmd.Output()
	if err != nil || !strings.Contains(string(out), "exit status 1") {
		t.Errorf("got %q, %v, want cat to fail", out, err)
	}
}
