package supervise

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/reprieve-dev/reprieve/events"
	"github.com/reprieve-dev/reprieve/handlers"
)

// Identity returns the claim of this process, with a random id, on node.
func Identity(id string, node events.Node) (handlers.Claim, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return handlers.Claim{}, fmt.Errorf("%w: read this machine's boot id: %w", handlers.ErrUnavailable, err)
	}
	host, err := os.Hostname()
	if err != nil {
		return handlers.Claim{}, fmt.Errorf("%w: read this machine's name: %w", handlers.ErrUnavailable, err)
	}
	namespace, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return handlers.Claim{}, fmt.Errorf("%w: read this process's pid namespace: %w", handlers.ErrUnavailable, err)
	}
	self, ok := readProcess(os.Getpid())
	if !ok {
		return handlers.Claim{}, fmt.Errorf("%w: read this process's start time: is /proc mounted?", handlers.ErrUnavailable)
	}
	return handlers.Claim{
		ID: id, Node: node, Host: host, Boot: strings.TrimSpace(string(boot)), PIDNS: namespace, PID: self.pid, Start: self.start,
		PodUID: os.Getenv("POD_UID"), At: time.Now().UTC(),
	}, nil
}

// Dead returns a function that reports whether a claimant is known to be dead, as seen by the
// process of claim: a process of this host, boot and pid namespace that is not there any more, or
// the container that ran before this one in the same pod. False means that nobody knows.
func Dead(own handlers.Claim) func(handlers.Claim) bool {
	return func(other handlers.Claim) bool {
		if other.ID == own.ID {
			return false
		}
		if own.PodUID != "" && other.PodUID == own.PodUID {
			return true
		}
		if other.Host != own.Host || other.Boot != own.Boot || other.PIDNS != own.PIDNS {
			return false
		}
		p, ok := readProcess(other.PID)
		return !ok || p.start != other.Start || !p.alive()
	}
}
