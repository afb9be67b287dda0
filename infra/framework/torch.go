package framework

import (
	"archive/zip"
	"io/fs"
	"path/filepath"
	"strings"
)

// torch takes the files of torch.save for checkpoints: zip archives, complete when their directory
// and every entry that it names are there. The step is the last number of the name, else an integer
// global_step or step in data.pkl, which is scanned, never executed.
type torch struct{}

func (torch) Name() string { return "torch" }

func (t torch) Scan(dir string, ev Evidence) ([]Unit, error) {
	return scan(dir, ev, func(u *Unit, e fs.DirEntry) {
		if !t.is(e) {
			u.Name = "" // not one of torch's
			return
		}
		t.judge(dir, u)
	})
}

func (torch) is(e fs.DirEntry) bool {
	switch filepath.Ext(e.Name()) {
	case ".pt", ".pth", ".ckpt":
		return e.Type().IsRegular()
	}
	return false
}

func (torch) judge(dir string, u *Unit) {
	u.Complete, u.Why = false, ""
	archive, err := zip.OpenReader(filepath.Join(dir, u.Name))
	if err != nil {
		u.Why = "it is no complete zip archive: " + err.Error()
		return
	}
	defer func() { _ = archive.Close() }()
	for _, f := range archive.File {
		start, err := f.DataOffset()
		if err != nil || start+int64(f.CompressedSize64) > u.Bytes {
			u.Why = "its entry " + f.Name + " is not whole"
			return
		}
	}
	u.Complete = true
	if u.Step < 0 {
		for _, f := range archive.File {
			if strings.HasSuffix(f.Name, "data.pkl") {
				u.Step = pickleStep(f)
			}
		}
	}
}
