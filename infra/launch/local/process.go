package local

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/reprieve-dev/reprieve/handlers"
)

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
		return "", "", fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	return fields[0], fields[19], nil
}

func bootID() (string, error) {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(raw)), err
}

// writeJSON writes a file as a whole or not at all.
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

func unavailable(err error) error {
	return fmt.Errorf("%w: local launcher: %w", handlers.ErrUnavailable, err)
}
