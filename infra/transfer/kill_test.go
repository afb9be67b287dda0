package transfer_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/blob"
	"github.com/reprieve-dev/reprieve/infra/blob/file"
	"github.com/reprieve-dev/reprieve/infra/transfer"
)

// killedDir makes a test process one that restores below that directory until it is killed.
const killedDir = "TRANSFER_TEST_DIR"

// A restore that is killed at any moment leaves no part of a unit, and nothing that was there is lost.
func TestDownloadIsKilled(t *testing.T) {
	if base := os.Getenv(killedDir); base != "" {
		t.Fatal(restoreForEver(base))
	}
	base := t.TempDir()
	stored, err := file.Open(filepath.Join(base, "store"))
	must(t, err)
	var versions []map[string]string
	var manifests []handlers.Manifest
	for i := range 2 {
		files := map[string][]byte{}
		for n := range 4 {
			files[fmt.Sprintf("step-5/%d/of %d", n%2, n)] = content(fmt.Sprint(i, n), 100_000)
		}
		m := upload(t, stored, "step-5", files)
		version := map[string]string{}
		for n, f := range m.Files { // each version has keys of its own
			version[strings.TrimPrefix(f.Path, "step-5/")] = string(files[f.Path])
			moved := fmt.Sprintf("%d/%d", i, n)
			_, err := blob.PutBytes(t.Context(), stored, moved, files[f.Path], blob.Cond{})
			must(t, err)
		}
		versions, manifests = append(versions, version), append(manifests, m)
	}
	raw, err := json.Marshal(manifests)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(base, "manifests"), raw, 0o600))

	dir := filepath.Join(base, "dir")
	whole := func(unit string) bool {
		got := map[string]string{}
		for name, e := range tree(t, unit) {
			if !strings.HasSuffix(name, "/") {
				got[name] = e.Data
			}
		}
		return maps.Equal(got, versions[0]) || maps.Equal(got, versions[1])
	}
	for reads := 0; reads < 24; reads += 3 { // 4 a restore, so at every place of one
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestDownloadIsKilled$")
		child.Env = append(os.Environ(), killedDir+"="+base)
		child.Stderr = os.Stderr
		stdout, err := child.StdoutPipe()
		must(t, err)
		must(t, child.Start())
		lines := bufio.NewScanner(stdout)
		for n := 0; n <= reads && lines.Scan(); n++ {
		}
		must(t, child.Process.Kill())
		_ = child.Wait()

		units, err := filepath.Glob(filepath.Join(dir, ".reprieve", "quarantine", "*", "step-5"))
		must(t, err)
		if _, err := os.Lstat(filepath.Join(dir, "step-5")); err == nil {
			units = append(units, filepath.Join(dir, "step-5"))
		}
		for _, unit := range units {
			if !whole(unit) {
				t.Fatalf("killed after %d reads: %s is not whole", reads, unit)
			}
		}
		must(t, transfer.CleanRestores(dir))
		left, err := filepath.Glob(filepath.Join(dir, ".reprieve", "restore-*"))
		must(t, err)
		if len(left) > 0 {
			t.Fatalf("killed after %d reads: got %v left behind", reads, left)
		}
		// The next one is not disturbed.
		must(t, transfer.Download(t.Context(), stored, keyOf(manifests[0], 0), manifests[0], dir))
		if !whole(filepath.Join(dir, "step-5")) {
			t.Fatal("the restore afterwards is not whole")
		}
		after, err := filepath.Glob(filepath.Join(dir, ".reprieve", "quarantine", "*", "step-5"))
		must(t, err)
		if len(after) != len(units) { // also the one that was in its place
			t.Errorf("killed after %d reads: got %d units in quarantine, want %d", reads, len(after), len(units))
		}
	}
}

// keyOf is where the data of one version of the unit lies.
func keyOf(m handlers.Manifest, version int) func(handlers.File) string {
	return func(f handlers.File) string {
		for n, have := range m.Files {
			if have.Path == f.Path {
				return fmt.Sprintf("%d/%d", version, n)
			}
		}
		return "none"
	}
}

// restoreForEver restores the two versions in turn and prints a line at each read.
func restoreForEver(base string) error {
	opened, err := file.Open(filepath.Join(base, "store"))
	if err != nil {
		return err
	}
	s := &store{Store: opened, get: func(n int, _ string, body io.ReadCloser, info blob.Info, err error) (io.ReadCloser, blob.Info, error) {
		fmt.Println(n)
		return body, info, err
	}}
	raw, err := os.ReadFile(filepath.Join(base, "manifests"))
	if err != nil {
		return err
	}
	var manifests []handlers.Manifest
	if err := json.Unmarshal(raw, &manifests); err != nil {
		return err
	}
	for {
		for version, m := range manifests {
			if err := transfer.Download(context.Background(), s, keyOf(m, version), m, filepath.Join(base, "dir")); err != nil {
				return err
			}
		}
	}
}
