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
	"os"
	"slices"
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
// so that none can fork away meanwhile. Orphans are reaped at once: looking at the dead would make
// the looks too slow to catch what forks and exits all the time.
func killDescendants(ctx context.Context, child int) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	dead := map[process]bool{}
	for round := 0; ; round++ {
		left, settled := freeze(dead)
		for p := range dead {
			if p.pid != child {
				_, _ = unix.Wait4(p.pid, nil, unix.WNOHANG, nil)
			}
		}
		if settled && len(left) == 0 {
			return nil
		}
		for _, p := range left {
			p.signal(unix.SIGKILL)
		}
		if (!settled || round < 10) && ctx.Err() == nil {
			continue // what forks and exits all the time is caught by being fast
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: pids %v: %w", ErrLeftovers, numbers(left), context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// freeze stops everything below this process, looking again (a few times) as long as a look finds
// news, and returns what is alive.
//
// Settled means that the last look had no news: neither a living process that was not stopped
// before, nor a direct child that is dead and was not dead before. Death counts as news because
// what forks and exits may be listed while it lives, be dead when it is looked at, and have left
// us its successor in between. A subreaper with no child but the long dead has no descendant.
func freeze(dead map[process]bool) (alive []process, settled bool) {
	self := os.Getpid()
	frozen := map[process]bool{}
	for range 20 {
		alive = alive[:0]
		news := false
		visit := func(p process) {
			key := process{pid: p.pid, start: p.start}
			switch {
			case p.alive():
				alive = append(alive, p)
				if !frozen[key] {
					frozen[key], news = true, true
					p.signal(unix.SIGSTOP)
				}
			case p.ppid == self && !dead[key]:
				dead[key], news = true, true
			}
		}
		// Direct children first, the latest before the others: that look is much faster than the
		// pass over all of /proc.
		for _, pid := range slices.Backward(childrenOf(self)) {
			if p, ok := readProcess(pid); ok {
				visit(p)
			}
		}
		for _, p := range descendants(self) {
			visit(p)
		}
		if !news {
			return alive, true
		}
	}
	return alive, false
}

func numbers(procs []process) []int {
	found := make([]int, 0, len(procs))
	for _, p := range procs {
		found = append(found, p.pid)
	}
	slices.Sort(found)
	return slices.Compact(found)
}
