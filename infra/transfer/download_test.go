package transfer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/blob"
	"github.com/reprieve-dev/reprieve/infra/blob/file"
	"github.com/reprieve-dev/reprieve/infra/blob/mem"
	"github.com/reprieve-dev/reprieve/infra/transfer"
)

func TestRoundTrip(t *testing.T) {
	many := map[string][]byte{"step-5/big": content("big", 9<<20+1), "step-5/empty": nil}
	for i := range 100 {
		many[fmt.Sprintf("step-5/shards/%d/part-%03d", i%7, i)] = content(fmt.Sprint(i), i*37)
	}
	stored, err := file.Open(t.TempDir())
	must(t, err)
	for name, c := range map[string]struct {
		unit  string
		files map[string][]byte
	}{
		"a file":           {"ckpt_5.pt", map[string][]byte{"ckpt_5.pt": content("c", 9<<20)}},
		"an empty file":    {"ckpt_6.pt", map[string][]byte{"ckpt_6.pt": nil}},
		"a hidden file":    {".last", map[string][]byte{".last": []byte("x")}},
		"a directory":      {"step-5", many},
		"odd names":        {"step 7 é*[1]", map[string][]byte{"step 7 é*[1]/..x/a b": []byte("x"), "step 7 é*[1]/%2e%2e": []byte("y")}},
		"same inner names": {"a", map[string][]byte{"a/a/a": []byte("1"), "a/b/a": []byte("2")}},
	} {
		for kind, s := range map[string]blob.Store{"mem": mem.New(nil), "file": stored} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				m := upload(t, s, c.unit, c.files)
				must(t, transfer.Verify(t.Context(), s, key, m))
				want := t.TempDir()
				write(t, want, c.files)
				dir := filepath.Join(t.TempDir(), "made", "on demand")
				must(t, transfer.Download(t.Context(), s, key, m, dir))
				got := tree(t, dir)
				delete(got, ".reprieve/")
				if diff := cmp.Diff(tree(t, want), got); diff != "" {
					t.Errorf("(-want +got)\n%.3000s", diff)
				}
			})
		}
	}
}

// Permissions are kept as they were, and nothing beyond permissions comes from a manifest.
func TestModes(t *testing.T) {
	s := mem.New(nil)
	m := upload(t, s, "c", map[string][]byte{"c/a": nil, "c/b": nil, "c/c": nil})
	want := map[string]os.FileMode{"c/a": 0o400, "c/b": 0o777, "c/c": 0o640}
	for i, mode := range []uint32{0o400, uint32(os.ModeSetuid | 0o777), 0o640} {
		m.Files[i].Mode, m.Files[i].Path = mode, "c/"+string(rune('a'+i))
	}
	dir := t.TempDir()
	must(t, transfer.Download(t.Context(), s, key, m, dir))
	got := tree(t, dir)
	for name, mode := range want {
		if got[name].Mode != mode {
			t.Errorf("%s: got mode %v, want %v", name, got[name].Mode, mode)
		}
	}
}

// damage is what can happen to the object of step-5/b, whose content is 3 MiB.
var damage = map[string]func(body io.ReadCloser, info blob.Info, err error) (io.ReadCloser, blob.Info, error){
	"bit flip at the start": flip(0),
	"bit flip at the end":   flip(3<<20 - 1),
	"truncated": func(body io.ReadCloser, info blob.Info, err error) (io.ReadCloser, blob.Info, error) {
		info.Size = 2 << 20
		return io.NopCloser(io.LimitReader(body, info.Size)), info, err
	},
	"truncated, size as it was": func(body io.ReadCloser, info blob.Info, err error) (io.ReadCloser, blob.Info, error) {
		return io.NopCloser(io.LimitReader(body, 2<<20)), info, err
	},
	"longer": func(body io.ReadCloser, info blob.Info, err error) (io.ReadCloser, blob.Info, error) {
		info.Size++
		return io.NopCloser(io.MultiReader(body, strings.NewReader("x"))), info, err
	},
	"empty": func(_ io.ReadCloser, info blob.Info, err error) (io.ReadCloser, blob.Info, error) {
		info.Size = 0
		return io.NopCloser(strings.NewReader("")), info, err
	},
	"missing": func(io.ReadCloser, blob.Info, error) (io.ReadCloser, blob.Info, error) {
		return nil, blob.Info{}, fmt.Errorf("get: %w", handlers.ErrNotFound)
	},
}

func flip(at int) func(io.ReadCloser, blob.Info, error) (io.ReadCloser, blob.Info, error) {
	return func(body io.ReadCloser, info blob.Info, err error) (io.ReadCloser, blob.Info, error) {
		data, readErr := io.ReadAll(body)
		if len(data) > at {
			data[at] ^= 0x10
		}
		return io.NopCloser(bytes.NewReader(data)), info, errors.Join(err, readErr)
	}
}

// damaged is a checkpoint of three files whose second one reads damaged the first so many times.
func damaged(t *testing.T, times int, harm func(io.ReadCloser, blob.Info, error) (io.ReadCloser, blob.Info, error)) (*store, handlers.Manifest) {
	s := &store{Store: mem.New(nil)}
	m := upload(t, s, "step-5", map[string][]byte{"step-5/a": []byte("a"), "step-5/b": content("b", 3<<20), "step-5/c": []byte("c")})
	s.get = func(_ int, key string, body io.ReadCloser, info blob.Info, err error) (io.ReadCloser, blob.Info, error) {
		if !strings.HasSuffix(key, "/b") || times == 0 {
			return body, info, err
		}
		times--
		return harm(body, info, err)
	}
	return s, m
}

func TestDamage(t *testing.T) {
	for name, harm := range damage {
		for verb, call := range map[string]func(context.Context, blob.Store, handlers.Manifest, string) error{
			"download": func(ctx context.Context, s blob.Store, m handlers.Manifest, dir string) error {
				return transfer.Download(ctx, s, key, m, dir)
			},
			"verify": func(ctx context.Context, s blob.Store, m handlers.Manifest, _ string) error {
				return transfer.Verify(ctx, s, key, m)
			},
		} {
			t.Run(verb+"/lasting/"+name, func(t *testing.T) {
				s, m := damaged(t, -1, harm)
				before := s.gets
				dir := t.TempDir()
				write(t, dir, map[string][]byte{"step-4/a": []byte("mine")})
				was := tree(t, dir)
				err := call(t.Context(), s, m, dir)
				wantClass(t, err, handlers.ErrRotten)
				if err != nil && !strings.Contains(err.Error(), "step-5/b") {
					t.Errorf("got %q, want it to name the file", err)
				}
				reads := 2 // of b, and of those before it one each
				for _, f := range m.Files {
					if f.Path == "step-5/b" {
						break
					}
					reads++
				}
				if got := s.gets - before; got != reads {
					t.Errorf("got %d reads, want %d", got, reads)
				}
				wantUntouched(t, dir, was)
			})
			t.Run(verb+"/passing/"+name, func(t *testing.T) {
				s, m := damaged(t, 1, harm)
				dir := t.TempDir()
				must(t, call(t.Context(), s, m, dir))
				if verb == "verify" {
					return
				}
				if got, want := tree(t, dir)["step-5/b"].Data, string(content("b", 3<<20)); got != want {
					t.Errorf("step-5/b: got %d other bytes", len(got))
				}
			})
		}
	}
}

// An error of the store is never taken for rot: falling back to an older checkpoint would lose work.
func TestErrorAtEveryOperation(t *testing.T) {
	down := errors.New("connection reset")
	files := map[string][]byte{"step-5/a": []byte("a"), "step-5/b": content("b", 3<<20), "step-5/c": []byte("c")}
	for name, fail := range map[string]func(body io.ReadCloser, info blob.Info) (io.ReadCloser, blob.Info, error){
		"get": func(io.ReadCloser, blob.Info) (io.ReadCloser, blob.Info, error) {
			return nil, blob.Info{}, fmt.Errorf("%w: %w", handlers.ErrUnavailable, down)
		},
		"get without a class": func(io.ReadCloser, blob.Info) (io.ReadCloser, blob.Info, error) { return nil, blob.Info{}, down },
		"read": func(body io.ReadCloser, info blob.Info) (io.ReadCloser, blob.Info, error) {
			broken := readerFunc(func([]byte) (int, error) { return 0, down })
			return io.NopCloser(io.MultiReader(io.LimitReader(body, info.Size/2), broken)), info, nil
		},
		"cut off": func(body io.ReadCloser, info blob.Info) (io.ReadCloser, blob.Info, error) {
			broken := readerFunc(func([]byte) (int, error) { return 0, errors.Join(io.ErrUnexpectedEOF, down) })
			return io.NopCloser(io.MultiReader(io.LimitReader(body, info.Size/2), broken)), info, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := &store{Store: mem.New(nil)}
			m := upload(t, s, "step-5", files)
			for n := 1; n <= len(files); n++ {
				s.gets = 0
				s.get = func(now int, _ string, body io.ReadCloser, info blob.Info, err error) (io.ReadCloser, blob.Info, error) {
					if now != n {
						return body, info, err
					}
					return fail(body, info)
				}
				dir := t.TempDir()
				write(t, dir, map[string][]byte{"step-5/a": []byte("older"), "notes": []byte("mine")})
				was := tree(t, dir)
				err := transfer.Download(t.Context(), s, key, m, dir)
				if !errors.Is(err, down) || errors.Is(err, handlers.ErrRotten) || handlers.Class(err) != handlers.ErrUnavailable {
					t.Errorf("get %d: got %v, want only unavailable", n, err)
				}
				if s.gets != n {
					t.Errorf("get %d: got %d reads", n, s.gets)
				}
				wantUntouched(t, dir, was)
			}
		})
	}
}

func TestDownloadIsCancelled(t *testing.T) {
	cause := errors.New("the machine goes away")
	for name, at := range map[string]int{"before": -1, "in the middle of a file": 1 << 20} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			s := &store{Store: mem.New(nil)}
			m := upload(t, s, "c", map[string][]byte{"c": content("c", 20<<20)})
			read := 0
			s.get = func(_ int, _ string, body io.ReadCloser, info blob.Info, err error) (io.ReadCloser, blob.Info, error) {
				if err != nil {
					return body, info, err
				}
				return io.NopCloser(readerFunc(func(p []byte) (int, error) {
					n, err := body.Read(p)
					if read += n; read > at {
						cancel(cause)
					}
					return n, err
				})), info, nil
			}
			if at < 0 {
				cancel(cause)
			}
			dir := t.TempDir()
			err := transfer.Download(ctx, s, key, m, dir)
			wantClass(t, err, handlers.ErrUnavailable)
			if !errors.Is(err, cause) {
				t.Errorf("got %v, want the cause", err)
			}
			if read > 4<<20 {
				t.Errorf("got %d bytes read after the cancellation", read)
			}
			wantUntouched(t, dir, nil)
		})
	}
}

func TestWhatIsThereGoesToQuarantine(t *testing.T) {
	s := mem.New(nil)
	m := upload(t, s, "c", map[string][]byte{"c": []byte("new")})
	dir := t.TempDir()
	for name, prepare := range map[string]func(path string) error{
		"file":          func(path string) error { return os.WriteFile(path, []byte("old"), 0o600) },
		"directory":     func(path string) error { return os.MkdirAll(filepath.Join(path, "inner"), 0o755) },
		"dangling link": func(path string) error { return os.Symlink("nowhere", path) },
		"link to a directory": func(path string) error {
			return os.Symlink(t.TempDir(), path)
		},
	} {
		t.Run(name, func(t *testing.T) {
			target := filepath.Join(dir, "c")
			must(t, os.RemoveAll(target))
			must(t, prepare(target))
			before, err := os.Lstat(target)
			must(t, err)
			kept := quarantined(t, dir)
			must(t, transfer.Download(t.Context(), s, key, m, dir))
			data, err := os.ReadFile(target)
			must(t, err)
			if got, want := string(data), "new"; got != want {
				t.Errorf("got %q, want %q", got, want)
			}
			now := quarantined(t, dir)
			if len(now) != len(kept)+1 {
				t.Fatalf("got %v in quarantine, had %v", now, kept)
			}
			moved, err := os.Lstat(now[len(now)-1])
			must(t, err)
			if !os.SameFile(before, moved) {
				t.Error("what was there is not what is in quarantine")
			}
		})
	}
}

// Of restores at once each leaves a whole unit: the last one in its place, the others in quarantine.
func TestDownloadsAtOnce(t *testing.T) {
	const downloads = 8
	for name, files := range map[string]map[string][]byte{
		"a file":      {"c": content("c", 10_000)},
		"a directory": {"c/1": content("1", 10_000), "c/2/3": content("3", 10_000)},
	} {
		t.Run(name, func(t *testing.T) {
			s := mem.New(nil)
			m := upload(t, s, "c", files)
			dir := t.TempDir()
			var wait sync.WaitGroup
			for range downloads {
				wait.Go(func() {
					if err := transfer.Download(t.Context(), s, key, m, dir); err != nil {
						t.Error(err)
					}
				})
			}
			wait.Wait()
			units := append(quarantined(t, dir), filepath.Join(dir, "c"))
			if got := len(units); got != downloads {
				t.Errorf("got %d units, want %d: %v", got, downloads, units)
			}
			for _, unit := range units {
				for name, data := range files {
					got, err := os.ReadFile(unit + strings.TrimPrefix(name, "c"))
					if err != nil || string(got) != string(data) {
						t.Errorf("%s: %s is not whole: %v", unit, name, err)
					}
				}
			}
		})
	}
}

func quarantined(t *testing.T, dir string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, ".reprieve", "quarantine", "*", "c"))
	must(t, err)
	return found
}

func TestDirectoryThatCannotBeWritten(t *testing.T) {
	s := mem.New(nil)
	m := upload(t, s, "c", map[string][]byte{"c": []byte("new")})
	dir := filepath.Join(t.TempDir(), "a-file")
	must(t, os.WriteFile(dir, nil, 0o600))
	err := transfer.Download(t.Context(), s, key, m, dir)
	wantClass(t, err, handlers.ErrInvalid)
	if err != nil && !strings.Contains(err.Error(), dir) {
		t.Errorf("got %q, want it to name the directory", err)
	}
}

func TestCleanRestores(t *testing.T) {
	for _, name := range []string{"plain", "run[1]", "a*b?", `back\slash`} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), name)
			must(t, transfer.CleanRestores(dir)) // there is nothing yet
			write(t, dir, map[string][]byte{
				".reprieve/restore-1/c/a":        []byte("half"),
				".reprieve/restore-22":           nil,
				".reprieve/quarantine/x/c":       []byte("kept"),
				".reprieve/capture/restore-step": []byte("kept"),
				"restore-me":                     []byte("the trainer's"),
			})
			must(t, transfer.CleanRestores(dir))
			var got []string
			for path := range tree(t, dir) {
				if strings.Contains(path, "restore-") {
					got = append(got, path)
				}
			}
			if len(got) != 2 {
				t.Errorf("got %v, want only what is no restore", got)
			}
			must(t, transfer.CleanRestores(dir))
		})
	}
}
