package framework

import (
	"io"
	"os"
	"path"
	"sync"
	"time"
)

// torch takes the files of torch.save for checkpoints: .pt, .pth and .ckpt, and .bin if it is a zip
// archive. One is complete when the archive is (zip.go). The step is the last number of the name,
// else an integer in its data.pkl (pickle.go).
type torch struct {
	mu       sync.Mutex
	verdicts map[string]verdict // by name; so that a scan does not read what has not changed
}

type verdict struct {
	size    int64
	modTime time.Time
	is      bool
	why     string
	step    int64
}

// unchanging is how old a file has to be for its verdict to be kept: another write within the
// grain of the file system's clock would not show.
const unchanging = time.Second

func newTorch() *torch { return &torch{verdicts: map[string]verdict{}} }

func (*torch) Name() string { return "torch" }

func (t *torch) Scan(dir string, ev Evidence) ([]Unit, error) {
	return scan(dir, ev, t.judge)
}

func (t *torch) judge(root *os.Root, e *entry) bool {
	switch path.Ext(e.Name) {
	case ".pt", ".pth", ".ckpt", ".bin":
	default:
		return false
	}
	if e.dir {
		return false
	}
	v := t.look(root, e)
	if !v.is {
		return false
	}
	if v.why != "" {
		e.not(v.why)
	}
	if e.Step < 0 {
		e.Step = v.step
	}
	return true
}

func (t *torch) look(root *os.Root, e *entry) verdict {
	t.mu.Lock()
	v, known := t.verdicts[e.Name]
	t.mu.Unlock()
	if known && v.size == e.Bytes && v.modTime.Equal(e.ModTime) {
		return v
	}
	v = inspect(root, e.Name)
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Since(v.modTime) > unchanging {
		if len(t.verdicts) > 10_000 { // names that will not come back
			clear(t.verdicts)
		}
		t.verdicts[e.Name] = v
	} else {
		delete(t.verdicts, e.Name)
	}
	return v
}

func inspect(root *os.Root, name string) verdict {
	v := verdict{step: -1, is: path.Ext(name) != ".bin"}
	f, err := root.Open(name)
	if err != nil {
		v.why = "it cannot be read: " + err.Error()
		return v
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		v.why = "it cannot be read: " + err.Error()
		return v
	}
	v.size, v.modTime = info.Size(), info.ModTime()
	head := make([]byte, 4)
	if _, err := f.ReadAt(head, 0); err == nil && string(head) == localMagic {
		v.is = true
	}
	if err := readArchive(f, v.size, func(m member) {
		if path.Base(m.name) == "data.pkl" && v.step < 0 {
			if data := m.open(f); data != nil {
				v.step = pickledStep(io.LimitReader(data, pickleLimit))
			}
		}
	}); err != nil {
		v.why = "it is no complete zip archive: " + err.Error()
	}
	return v
}
