package file_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"

	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/blob"
	"github.com/reprieve-dev/reprieve/infra/blob/file"
)

// programs are what the test binary can be beside the tests: the process that is killed, the ones
// that race, the one with a full disk.
var programs = map[string]func(root string) error{"write": writeForever, "count": count}

func TestMain(m *testing.M) {
	program := programs[os.Getenv("FILE_TEST_CHILD")]
	if program == nil {
		os.Exit(m.Run())
	}
	if err := program(os.Getenv("FILE_TEST_ROOT")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func child(t *testing.T, what, root string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), "FILE_TEST_CHILD="+what, "FILE_TEST_ROOT="+root)
	cmd.Stderr = t.Output()
	return cmd
}

const killKeys = 4

// document is size bytes behind a hash of them, so that a half one is recognised.
func document(size int) []byte {
	body := bytes.Repeat([]byte{byte(rand.Uint32())}, size)
	sum := sha256.Sum256(body)
	return append([]byte(hex.EncodeToString(sum[:])), body...)
}

func whole(data []byte) bool {
	if len(data) < 64 {
		return false
	}
	sum := sha256.Sum256(data[64:])
	return hex.EncodeToString(sum[:]) == string(data[:64])
}

// writeForever creates, swaps and deletes, and writes one byte to stdout after each operation.
func writeForever(root string) error {
	s, err := file.Open(root)
	if err != nil {
		return err
	}
	ctx := context.Background()
	for {
		key := fmt.Sprintf("dir/%d/doc", rand.IntN(killKeys))
		info, err := s.Stat(ctx, key)
		switch {
		case errors.Is(err, handlers.ErrNotFound):
			_, err = blob.PutBytes(ctx, s, key, document(rand.IntN(200_000)), blob.Cond{Absent: true})
		case err == nil && rand.IntN(4) == 0:
			err = s.Delete(ctx, key)
		case err == nil:
			_, err = blob.PutBytes(ctx, s, key, document(rand.IntN(200_000)), blob.Cond{Version: info.Version})
		}
		if err != nil && !errors.Is(err, handlers.ErrConflict) {
			return err
		}
		if _, err := os.Stdout.Write([]byte{'.'}); err != nil {
			return err
		}
	}
}

// Killed at any moment, a writer leaves whole documents and no lock.
func TestKilledWriter(t *testing.T) {
	root := t.TempDir()
	s := open(t, root)
	for round := range 40 {
		var writers []*exec.Cmd
		var progress []io.Reader
		for range 2 {
			cmd := child(t, "write", root)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			writers, progress = append(writers, cmd), append(progress, out)
		}
		// The writers do not wait for us, so where in its next operation one is killed is chance.
		if _, err := io.CopyN(io.Discard, progress[0], int64(1+rand.IntN(20))); err != nil {
			t.Errorf("round %d: the writer ended: %v", round, err)
		}
		for _, cmd := range writers {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
		for _, cmd := range writers {
			var exit *exec.ExitError
			if err := cmd.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("round %d: the writer was not killed but ended with %v", round, err)
			}
		}
		for info, err := range blob.All(t.Context(), s, "") {
			if err != nil {
				t.Fatal(err)
			}
			data, _, err := blob.ReadAll(t.Context(), s, info.Key)
			if err != nil || !whole(data) {
				t.Fatalf("round %d: %q has %d bytes that are no whole document, error %v", round, info.Key, len(data), err)
			}
		}
		for i := range killKeys { // no lock is left
			if err := s.Delete(t.Context(), fmt.Sprintf("dir/%d/doc", i)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

const increments = 50

func count(root string) error {
	s, err := file.Open(root)
	if err != nil {
		return err
	}
	ctx := context.Background()
	for done := 0; done < increments; {
		data, info, err := blob.ReadAll(ctx, s, "counter")
		if err != nil {
			return err
		}
		n, err := strconv.Atoi(string(data))
		if err != nil {
			return fmt.Errorf("half a document: %w", err)
		}
		_, err = blob.PutBytes(ctx, s, "counter", []byte(strconv.Itoa(n+1)), blob.Cond{Version: info.Version})
		if err == nil {
			done++
		} else if !errors.Is(err, handlers.ErrConflict) {
			return err
		}
	}
	return nil
}

func TestProcessesLoseNoIncrement(t *testing.T) {
	const processes = 4
	root := t.TempDir()
	s := open(t, root)
	put(t, s, "counter", "0", blob.Cond{})
	var counters []*exec.Cmd
	for range processes {
		cmd := child(t, "count", root)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		counters = append(counters, cmd)
	}
	for _, cmd := range counters {
		if err := cmd.Wait(); err != nil {
			t.Errorf("a counting process: %v", err)
		}
	}
	data, _, err := blob.ReadAll(t.Context(), s, "counter")
	if got, want := string(data), strconv.Itoa(processes*increments); err != nil || got != want {
		t.Errorf("counter = %s, error %v; want %s", got, err, want)
	}
	wantNoTemps(t, root)
}
