package transfer_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/blob"
	"github.com/reprieve-dev/reprieve/infra/blob/mem"
	"github.com/reprieve-dev/reprieve/infra/transfer"
)

var evil = []byte("evil")

// evilStore holds one object, which every file of a hostile manifest claims to be.
func evilStore(t *testing.T) blob.Store {
	t.Helper()
	s := mem.New(nil)
	_, err := blob.PutBytes(t.Context(), s, "k", evil, blob.Cond{})
	must(t, err)
	return s
}

func evilKey(handlers.File) string { return "k" }

func hostile(unit string, paths ...string) handlers.Manifest {
	sum := sha256.Sum256(evil)
	m := handlers.Manifest{Job: "j", Attempt: 1, Step: 5, Unit: unit}
	for _, p := range paths {
		m.Files = append(m.Files, handlers.File{Path: p, Size: int64(len(evil)), SHA256: hex.EncodeToString(sum[:]), Mode: 0o644})
	}
	return m
}

func TestHostileManifests(t *testing.T) {
	negative := hostile("u", "u")
	negative.Files[0].Size = -1
	for name, m := range map[string]handlers.Manifest{
		"no unit":               hostile("", "a"),
		"unit dot":              hostile(".", "a"),
		"unit dot dot":          hostile("..", "../a"),
		"unit absolute":         hostile("/etc", "/etc/passwd"),
		"unit two deep":         hostile("a/b", "a/b/c"),
		"unit with a slash":     hostile("a/", "a/b"),
		"unit climbs":           hostile("../x", "../x"),
		"unit ours":             hostile(".reprieve", ".reprieve/quarantine/x"),
		"unit with a backslash": hostile(`a\b`, `a\b`),
		"unit with a zero byte": hostile("a\x00", "a\x00"),
		"no file":               hostile("u"),
		"path empty":            hostile("u", ""),
		"path absolute":         hostile("u", "/tmp/x"),
		"path climbs":           hostile("u", "../x"),
		"path climbs in unit":   hostile("u", "u/../../x"),
		"path climbs back":      hostile("u", "u/../u/x"),
		"path beside the unit":  hostile("u", "v/x"),
		"path with the prefix":  hostile("u", "uv"),
		"path ours":             hostile("u", ".reprieve/restore-1/x"),
		"path not clean":        hostile("u", "u//x"),
		"path with dots":        hostile("u", "u/./x"),
		"path a directory":      hostile("u", "u/"),
		"path with a zero byte": hostile("u", "u/\x00"),
		"path with a backslash": hostile("u", `u/..\x`),
		"path twice":            hostile("u", "u/x", "u/x"),
		"file and directory":    hostile("u", "u/x/y", "u/x"),
		"unit file and dir":     hostile("u", "u", "u/x"),
		"good and bad":          hostile("u", "u/x", "../x"),
		"negative size":         negative,
	} {
		t.Run(name, func(t *testing.T) {
			s := &store{Store: evilStore(t)}
			above := t.TempDir()
			dir := filepath.Join(above, "dir")
			write(t, dir, map[string][]byte{"mine": []byte("mine")})
			was := tree(t, above)
			err := transfer.Download(t.Context(), s, evilKey, m, dir)
			wantClass(t, err, handlers.ErrPermanent)
			if errors.Is(err, handlers.ErrRotten) {
				t.Errorf("got %v, which would fall back silently", err)
			}
			wantClass(t, transfer.Verify(t.Context(), s, evilKey, m), handlers.ErrPermanent)
			if s.gets > 0 {
				t.Errorf("got %d reads of the store", s.gets)
			}
			wantUntouched(t, above, was)
		})
	}
}

// FuzzCheck: whatever a manifest says, a restore writes nothing but its unit and .reprieve, all of it or nothing.
func FuzzCheck(f *testing.F) {
	f.Add("step-5", "step-5/a\nstep-5/b/c", uint32(0o644), int64(4))
	f.Add("c.pt", "c.pt", uint32(0o4777), int64(4))
	f.Add("u", "u/../../x", uint32(0), int64(4))
	f.Add(".reprieve", ".reprieve/quarantine", uint32(0o644), int64(4))
	f.Add("..", "../dir/x", uint32(0o644), int64(-1))
	f.Add("mine", "mine/mine", uint32(1<<31), int64(0))
	f.Fuzz(func(t *testing.T, unit, paths string, mode uint32, size int64) {
		m := hostile(unit, strings.Split(paths, "\n")...)
		for i := range m.Files {
			m.Files[i].Mode = mode
		}
		m.Files[0].Size = size
		above := t.TempDir()
		dir := filepath.Join(above, "dir")
		write(t, above, map[string][]byte{"dir/mine": []byte("mine"), "x": []byte("x"), "dir/.reprieve/quarantine/x/old": nil})
		was := tree(t, above)
		err := transfer.Download(t.Context(), evilStore(t), evilKey, m, dir)
		if err != nil {
			now := tree(t, above)
			if len(now) != len(was) {
				t.Fatalf("got %d files, had %d, although %v", len(now), len(was), err)
			}
			return
		}
		for _, file := range m.Files {
			data, err := os.ReadFile(filepath.Join(dir, file.Path))
			if err != nil || string(data) != string(evil) {
				t.Errorf("%q: got %q, %v", file.Path, data, err)
			}
		}
		for name, now := range tree(t, above) {
			inUnit := name == "dir/"+unit || strings.HasPrefix(name, "dir/"+unit+"/")
			if _, known := was[name]; !inUnit && !known && !strings.HasPrefix(name, "dir/.reprieve/quarantine/") {
				t.Errorf("%q was written", name)
			} else if !inUnit && known && now != was[name] {
				t.Errorf("%q was changed", name)
			}
			if inUnit && !strings.HasSuffix(name, "/") && now.Mode&^0o777 != 0 {
				t.Errorf("%q: got mode %v", name, now.Mode)
			}
		}
	})
}

// An endless object is not written to the disk beyond what the manifest says.
func TestEndlessObject(t *testing.T) {
	written := 0
	s := &store{Store: evilStore(t), get: func(_ int, _ string, _ io.ReadCloser, info blob.Info, err error) (io.ReadCloser, blob.Info, error) {
		return io.NopCloser(readerFunc(func(p []byte) (int, error) {
			if written += len(p); written > 64<<20 {
				return 0, errors.New("read for ever")
			}
			return len(p), nil
		})), info, err
	}}
	dir := t.TempDir()
	wantClass(t, transfer.Download(t.Context(), s, evilKey, hostile("u", "u"), dir), handlers.ErrRotten)
	wantUntouched(t, dir, nil)
}

// A trainer that made links of what is ours does not make a restore write elsewhere.
func TestLinksLeadNowhere(t *testing.T) {
	for name, c := range map[string]struct {
		link string // in dir
		to   string // where the trainer's files are; a link to them
		want error
	}{
		"our directory":         {".reprieve", "../beside", handlers.ErrInvalid},
		"our directory, inside": {".reprieve", "logs", handlers.ErrInvalid},
		"our quarantine":        {".reprieve/quarantine", "../../beside", handlers.ErrInvalid},
		"the unit":              {"u", "../beside", nil},
		"the directory":         {"", "beside", nil}, // which was asked for under that name
	} {
		t.Run(name, func(t *testing.T) {
			above := t.TempDir()
			dir := filepath.Join(above, "dir")
			beside := filepath.Join(filepath.Dir(filepath.Join(dir, c.link)), c.to)
			write(t, beside, map[string][]byte{"u/x": []byte("mine"), "restore-1/x": []byte("mine")})
			link := filepath.Join(dir, c.link)
			must(t, os.MkdirAll(filepath.Dir(link), 0o755))
			must(t, os.Symlink(c.to, link))
			if c.link == ".reprieve/quarantine" {
				write(t, dir, map[string][]byte{"u": []byte("in the way")})
			}
			was := tree(t, beside)
			err := transfer.Download(t.Context(), evilStore(t), evilKey, hostile("u", "u/x"), dir)
			if c.want != nil {
				wantClass(t, err, c.want)
			} else {
				must(t, err)
				data, err := os.ReadFile(filepath.Join(dir, "u", "x"))
				if err != nil || string(data) != string(evil) {
					t.Errorf("got %q, %v", data, err)
				}
			}
			if c.link == "" {
				return
			}
			wantUntouched(t, beside, was)
			must(t, transfer.CleanRestores(dir))
			wantUntouched(t, beside, was)
			if c.link == ".reprieve/quarantine" {
				data, err := os.ReadFile(filepath.Join(dir, "u"))
				if err != nil || string(data) != "in the way" {
					t.Errorf("what was in the way: got %q, %v", data, err)
				}
			}
		})
	}
}
