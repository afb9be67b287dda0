package supervise

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/reprieve-dev/reprieve/handlers"
)

// process is one entry of /proc. A pid alone may name another process a moment later; pid and
// start time together name one process for as long as the machine is up.
type process struct {
	pid, ppid int
	start     uint64 // clock ticks since boot
	state     byte   // as in /proc/PID/stat: R, S, D, T, t, Z, X
	threads   int
}

// alive is false for a zombie. A thread group whose main thread ended shows as a zombie too, but
// its other threads run on.
func (p process) alive() bool {
	return (p.state != 'Z' && p.state != 'X') || p.threads > 1
}

func (p process) stopped() bool { return p.state == 'T' }

// readProcess reads one process; ok is false when it is gone.
func readProcess(pid int) (process, bool) {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return process{}, false
	}
	return parseStat(pid, raw)
}

// parseStat reads "pid (comm) state ppid ..."; comm may itself hold blanks and parentheses.
func parseStat(pid int, raw []byte) (process, bool) {
	fields := bytes.Fields(raw[bytes.LastIndexByte(raw, ')')+1:])
	if len(fields) < 20 || len(fields[0]) != 1 {
		return process{}, false
	}
	ppid, err1 := strconv.Atoi(string(fields[1]))
	threads, err2 := strconv.Atoi(string(fields[17]))
	start, err3 := strconv.ParseUint(string(fields[19]), 10, 64)
	if err1 != nil || err2 != nil || err3 != nil {
		return process{}, false
	}
	return process{pid: pid, ppid: ppid, start: start, state: fields[0][0], threads: threads}, true
}

// pids lists the processes that /proc shows, in no useful order.
func pids() []int {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1) // a partial list is what there is
	found := make([]int, 0, len(names))
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			found = append(found, pid)
		}
	}
	return found
}

// descendants returns the processes below pid, parents before their children, zombies included,
// from one pass over /proc. A process whose parent ends during the pass may be missing; for a
// subreaper it shows up in the next pass, as its direct child.
func descendants(pid int) []process {
	children := map[int][]process{}
	for _, p := range pids() {
		if proc, ok := readProcess(p); ok {
			children[proc.ppid] = append(children[proc.ppid], proc)
		}
	}
	queue := children[pid]
	seen := map[int]bool{pid: true}
	var found []process
	for len(queue) > 0 {
		p := queue[0]
		queue = queue[1:]
		if seen[p.pid] { // a pid reused during the pass could close a circle
			continue
		}
		seen[p.pid] = true
		found = append(found, p)
		queue = append(queue, children[p.pid]...)
	}
	return found
}

// Descendants returns the pids of all living processes below pid, parents before their children.
// Zombies are left out. The pids are a snapshot: by the time they are used one may be gone.
func Descendants(pid int) []int {
	var found []int
	for _, p := range descendants(pid) {
		if p.alive() {
			found = append(found, p.pid)
		}
	}
	return found
}

// childrenOf asks the kernel for the children of one process, which is much faster than the pass
// over all of /proc. Some may be missing while others end; all are on kernels without the file.
func childrenOf(pid int) []int {
	base := "/proc/" + strconv.Itoa(pid) + "/task"
	tasks, err := os.ReadDir(base)
	if err != nil {
		return nil
	}
	var found []int
	for _, task := range tasks {
		raw, err := os.ReadFile(base + "/" + task.Name() + "/children")
		if err != nil {
			continue
		}
		for field := range strings.FieldsSeq(string(raw)) {
			if child, err := strconv.Atoi(field); err == nil {
				found = append(found, child)
			}
		}
	}
	return found
}

// tree returns the process and those below it as childrenOf knows them, parents first.
func (p process) tree() []process {
	found := []process{p}
	for i := 0; i < len(found); i++ {
		for _, pid := range childrenOf(found[i].pid) {
			if child, ok := readProcess(pid); ok && child.ppid == found[i].pid {
				found = append(found, child)
			}
		}
	}
	return found
}

func parentOf(pid int) (int, error) {
	p, ok := readProcess(pid)
	if !ok {
		return 0, fmt.Errorf("%w: process %d is gone", handlers.ErrNotFound, pid)
	}
	return p.ppid, nil
}

// signal sends sig to exactly this process, never to another one that got its pid. It reports
// false when the process is gone or is not ours to signal.
func (p process) signal(sig syscall.Signal) bool {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err != nil {
		if !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EPERM) {
			return false
		}
		// No pidfd here (old kernel, seccomp): look at the start time just before.
		now, ok := readProcess(p.pid)
		return ok && now.start == p.start && unix.Kill(p.pid, sig) == nil
	}
	defer unix.Close(fd)
	if now, ok := readProcess(p.pid); !ok || now.start != p.start {
		return false
	}
	return unix.PidfdSendSignal(fd, sig, nil, 0) == nil
}

// Catches reports whether the process has a handler for sig installed at this moment. A signal
// sent to a process that has none ends it, or is ignored.
//
// Errors: ErrNotFound when the process is gone.
func Catches(pid int, sig syscall.Signal) (bool, error) {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return false, fmt.Errorf("%w: read the signal handlers of process %d: %w", handlers.ErrNotFound, pid, err)
	}
	for line := range strings.Lines(string(raw)) {
		if mask, ok := strings.CutPrefix(line, "SigCgt:"); ok {
			bits, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64)
			if err != nil || sig < 1 || sig > 64 {
				break
			}
			return bits&(1<<(uint(sig)-1)) != 0, nil
		}
	}
	return false, fmt.Errorf("%w: read the signal handlers of process %d: no mask for signal %d", handlers.ErrInvalid, pid, int(sig))
}

// ProcessesWithEnv returns the processes that were started with key=value in their environment
// and that we may look at, this one included if it was.
func ProcessesWithEnv(key, value string) []int {
	want := []byte(key + "=" + value)
	var found []int
	for _, pid := range pids() {
		raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
		if err != nil {
			continue
		}
		for entry := range bytes.SplitSeq(raw, []byte{0}) {
			if bytes.Equal(entry, want) {
				found = append(found, pid)
				break
			}
		}
	}
	slices.Sort(found)
	return found
}

// WritersUnder returns the files below dir that any of the processes has open for writing, as
// sorted paths relative to dir. Processes that are gone or that we may not look at count as
// having none, and so does a file that is mapped but not open any more.
func WritersUnder(pids []int, dir string) []string {
	root, err := filepath.EvalSymlinks(dir)
	if err == nil {
		root, err = filepath.Abs(root)
	}
	if err != nil {
		return nil
	}
	found := map[string]bool{}
	for _, pid := range pids {
		base := "/proc/" + strconv.Itoa(pid)
		entries, err := os.ReadDir(base + "/fd")
		if err != nil {
			continue
		}
		for _, entry := range entries {
			target, err := os.Readlink(base + "/fd/" + entry.Name())
			if err != nil {
				continue
			}
			rel, err := filepath.Rel(root, target)
			if err != nil || !filepath.IsLocal(rel) || rel == "." || strings.HasSuffix(rel, " (deleted)") {
				continue
			}
			if opensForWriting(base + "/fdinfo/" + entry.Name()) {
				found[rel] = true
			}
		}
	}
	files := make([]string, 0, len(found))
	for rel := range found {
		files = append(files, rel)
	}
	slices.Sort(files)
	return files
}

func opensForWriting(fdinfo string) bool {
	raw, err := os.ReadFile(fdinfo)
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(raw)) {
		if octal, ok := strings.CutPrefix(line, "flags:"); ok {
			flags, err := strconv.ParseUint(strings.TrimSpace(octal), 8, 32)
			return err == nil && flags&unix.O_ACCMODE != unix.O_RDONLY
		}
	}
	return false
}
