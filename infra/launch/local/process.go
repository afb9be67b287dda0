package local

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/reprieve-dev/reprieve/handlers"
)

// process names one process of this machine for good.
type process struct {
	PID   int    `json:"pid"`
	Start string `json:"start"` // clock ticks since boot
	Boot  string `json:"boot"`
}

func identify(pid int) (process, error) {
	_, start, err := stat(pid)
	if err != nil {
		return process{}, err
	}
	boot, err := bootID()
	return process{PID: pid, Start: start, Boot: boot}, err
}

// alive reports whether exactly this process still runs.
func (p process) alive() bool {
	boot, err := bootID()
	if err != nil || boot != p.Boot {
		return false
	}
	state, start, err := stat(p.PID)
	return err == nil && start == p.Start && state != "Z" && state != "X"
}

// stat returns the state and the start time of a process, from proc_pid_stat(5).
func stat(pid int) (state, start string, err error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", "", err
	}
	fields := strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+1:]))
	if len(fields) < 20 {
		return "", "", fmt.Errorf("/proc/%d/stat has %d fields behind the name", pid, len(fields))
	}
	return fields[0], fields[19], nil
}

func bootID() (string, error) {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(raw)), err
}

const (
	killPause = 5 * time.Millisecond
	killTime  = 10 * time.Second
)

// kill ends everything on the node whose directory is dir. It wants to find nothing twice in a
// row: a process in the middle of an exec has no environment for a moment.
func kill(dir string) error {
	var pids []int
	for clean, until := 0, time.Now().Add(killTime); clean < 2; {
		pids = onNode(dir)
		if len(pids) == 0 {
			clean++
		} else {
			clean = 0
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if time.Now().After(until) {
			return fmt.Errorf("%w: processes %v of node %s do not die", handlers.ErrUnavailable, pids, filepath.Base(dir))
		}
		time.Sleep(killPause)
	}
	return nil
}

// onNode lists the living processes of the node whose directory is dir.
func onNode(dir string) []int {
	var found []int
	paths, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range paths {
		env, err := os.ReadFile(path)
		if err != nil || !slices.Contains(strings.Split(string(env), "\x00"), dirVariable+"="+dir) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
			found = append(found, pid)
		}
	}
	return found
}

// writeJSON writes a file as a whole, durably, or not at all.
func writeJSON(path string, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".tmp-")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

func readJSON(path string, value any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, value)
}
