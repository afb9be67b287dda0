// Package supervise is what `reprieve run` does to the training job's processes and files on
// one machine: it starts the command, asks it for checkpoints, recognises and captures them, and
// leaves no process behind. It does not store anything (ports do) and it does not decide what a
// notice means for the job (package handlers does).
//
// Linux only: it reads /proc and uses pidfds, PR_SET_CHILD_SUBREAPER and inotify.
package supervise

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/reprieve-dev/reprieve/handlers"
)

// orphanAge is how long a zombie that is not the child is left alone. Somebody else in this
// program may have started it (os/exec) and be about to wait for it; an orphan has nobody.
const orphanAge = time.Second

// reapOrphans waits for the zombies that descendants leave to this process, until quit is closed.
//
// Who waits for whom: child is waited for by pid, by one goroutine, so nobody else can take its
// status. Orphans are waited for by pid too, never with wait4(-1), and only if they have been
// zombies for orphanAge. So os/exec works beside it.
func reapOrphans(child int, sigchld <-chan os.Signal, quit <-chan struct{}) {
	seen := reap(child, nil)
	for {
		wake, again := sigchld, (<-chan time.Time)(nil)
		if len(seen) > 0 { // they have to age; whatever dies meanwhile is seen then
			wake, again = nil, time.After(orphanAge)
		}
		select {
		case <-quit:
			return
		case <-wake:
		case <-again:
		}
		seen = reap(child, seen)
	}
}

// reap waits for the orphans that were zombies in the last look already, and returns the new ones.
func reap(child int, before map[process]bool) map[process]bool {
	self := os.Getpid()
	fresh := map[process]bool{}
	for _, pid := range pids() {
		p, ok := readProcess(pid)
		switch {
		case !ok || p.ppid != self || p.alive() || pid == child:
		case before[p]:
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil) // its status interests nobody
		default:
			fresh[p] = true
		}
	}
	return fresh
}

// ErrLeftovers: processes are left that even SIGKILL did not end in time (uninterruptible sleep,
// another user's). The message has their pids.
var ErrLeftovers = fmt.Errorf("%w: processes of the job are still there", handlers.ErrUnavailable)

// killDescendants ends every process below this one. Processes are frozen before they are killed,
// so that none can fork away meanwhile, and it goes on until repeated looks find nobody.
func killDescendants(ctx context.Context) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	// What forks and exits all the time can slip through one look, so one empty look is not
	// enough; and the first rounds follow each other at once.
	for round, empty := 0, 0; ; round++ {
		left := freeze()
		if len(left) == 0 {
			if empty++; empty == 3 {
				return nil
			}
			continue
		}
		empty = 0
		for _, p := range left {
			p.signal(unix.SIGKILL)
		}
		if round < 10 && ctx.Err() == nil {
			continue
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: pids %v: %w", ErrLeftovers, numbers(left), context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// freeze stops everything below this process until a look finds nothing that was not stopped
// before (at most a few times), and returns what is alive.
func freeze() []process {
	self := os.Getpid()
	frozen := map[process]bool{}
	for range 20 {
		var alive []process
		news := false
		stop := func(p process) {
			if !p.alive() {
				return
			}
			alive = append(alive, p)
			if key := (process{pid: p.pid, start: p.start}); !frozen[key] {
				frozen[key], news = true, true
				p.signal(unix.SIGSTOP)
			}
		}
		// Direct children first: that look is much faster than the pass over all of /proc.
		for _, pid := range directChildren() {
			if p, ok := readProcess(pid); ok && p.ppid == self {
				stop(p)
			}
		}
		for _, p := range descendants(self) {
			stop(p)
		}
		if !news {
			return alive
		}
	}
	return slices.Collect(maps.Keys(frozen))
}

// directChildren asks the kernel for our children. The files are absent on some kernels.
func directChildren() []int {
	files, _ := filepath.Glob("/proc/self/task/*/children")
	var found []int
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for field := range strings.FieldsSeq(string(raw)) {
			if pid, err := strconv.Atoi(field); err == nil {
				found = append(found, pid)
			}
		}
	}
	return found
}

func numbers(procs []process) []int {
	found := make([]int, 0, len(procs))
	for _, p := range procs {
		found = append(found, p.pid)
	}
	slices.Sort(found)
	return slices.Compact(found)
}
