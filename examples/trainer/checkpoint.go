package main

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A checkpoint is step-<8 digits>.ckpt, a zip file of these entries, each little-endian and stored
// without compression:
//
//	progress   step, epoch, index (int64)
//	order      the epoch's permutation (int64)
//	weights    float64
//	optimizer  Adam's moments m, then v (float64)
//	rng        the random number generator's state, as math/rand/v2 marshals it
//	pad        any bytes; only with -pad-mb
//
// It is written under a temporary name, synced, and renamed into place.

var entries = []string{"progress", "order", "weights", "optimizer", "rng"}

const (
	padEntry = "pad"
	tempName = ".tmp-" // and the name of the file that it is to become
)

// errCheckpoint is the class of all that is wrong with a checkpoint that is to be resumed from.
var errCheckpoint = errors.New("bad checkpoint")

func checkpointName(step int64) string { return fmt.Sprintf("step-%08d.ckpt", step) }

// save writes a checkpoint with padMB megabytes of padding into dir, removes all but the newest keep
// ones, and returns its path.
func save(s *state, dir string, keep, padMB int) (string, error) {
	path := filepath.Join(dir, checkpointName(s.Step))
	if err := writeFile(path, func(w io.Writer) error { return encode(s, padMB, w) }); err != nil {
		return "", err
	}
	old, err := checkpoints(dir)
	if err != nil {
		return "", err
	}
	old = slices.DeleteFunc(old, func(p string) bool { return p == path })
	for _, p := range old[:max(0, len(old)-(keep-1))] {
		if err := os.Remove(p); err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", err
		}
	}
	return path, nil
}

func encode(s *state, padMB int, w io.Writer) error {
	rng, err := s.source.MarshalBinary()
	if err != nil {
		return err
	}
	z := zip.NewWriter(w)
	for i, data := range []any{[]int64{s.Step, s.Epoch, s.Index}, s.Order, s.Weights, slices.Concat(s.M, s.V), rng} {
		entry, err := z.CreateHeader(&zip.FileHeader{Name: entries[i], Method: zip.Store})
		if err != nil {
			return err
		}
		if err := binary.Write(entry, binary.LittleEndian, data); err != nil {
			return err
		}
	}
	if padMB > 0 {
		entry, err := z.CreateHeader(&zip.FileHeader{Name: padEntry, Method: zip.Store})
		if err != nil {
			return err
		}
		// Noise that differs from step to step, like weights: nothing to compress or to share.
		if _, err := io.CopyN(entry, rand.NewChaCha8([32]byte(fmt.Appendf(nil, "%032d", s.Step))), int64(padMB)<<20); err != nil {
			return err
		}
	}
	return z.Close()
}

// restore reads a checkpoint. Whatever is wrong with it is an errCheckpoint that names it: the zip
// format's checksums cover every entry.
func restore(path string, images int) (*state, error) {
	s, err := decode(path, images)
	if err != nil {
		return nil, fmt.Errorf("%w %s: %w; move it away to go on without it", errCheckpoint, path, err)
	}
	return s, nil
}

func decode(path string, images int) (*state, error) {
	s := &state{
		Weights: make([]float64, count), M: make([]float64, count), V: make([]float64, count),
		Order: make([]int64, images), source: &rand.PCG{},
	}
	z, err := zip.OpenReader(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = z.Close() }()
	files := z.File
	if len(files) == len(entries)+1 && files[len(entries)].Name == padEntry {
		if err := read(files[len(entries)], io.Discard); err != nil {
			return nil, fmt.Errorf("%s: %w", padEntry, err)
		}
	} else if len(files) != len(entries) {
		return nil, fmt.Errorf("%d entries instead of %d", len(files), len(entries))
	}
	progress, moments := make([]int64, 3), make([]float64, 2*count)
	for i, into := range []any{progress, s.Order, s.Weights, moments, s.source} {
		if err := decodeEntry(files[i], entries[i], into); err != nil {
			return nil, fmt.Errorf("%s: %w", entries[i], err)
		}
	}
	s.Step, s.Epoch, s.Index = progress[0], progress[1], progress[2]
	copy(s.M, moments[:count])
	copy(s.V, moments[count:])
	if s.Step < 0 || s.Epoch < 0 || s.Index < 0 || s.Index > int64(images) {
		return nil, fmt.Errorf("step %d, epoch %d, image %d of %d", s.Step, s.Epoch, s.Index, images)
	}
	seen := make([]bool, images)
	for _, i := range s.Order {
		if i < 0 || i >= int64(images) || seen[i] {
			return nil, fmt.Errorf("order is no permutation of %d images", images)
		}
		seen[i] = true
	}
	return s, nil
}

// decodeEntry reads the entry with that name into a slice of numbers or the generator.
func decodeEntry(f *zip.File, name string, into any) error {
	if f.Name != name {
		return fmt.Errorf("found %q in its place", f.Name)
	}
	want := uint64(20) // a marshalled PCG
	source, isSource := into.(*rand.PCG)
	if !isSource {
		want = uint64(binary.Size(into))
	}
	if f.UncompressedSize64 != want {
		return fmt.Errorf("%d bytes instead of %d", f.UncompressedSize64, want)
	}
	var data bytes.Buffer
	if err := read(f, &data); err != nil {
		return err
	}
	if isSource {
		return source.UnmarshalBinary(data.Bytes())
	}
	return binary.Read(&data, binary.LittleEndian, into)
}

// read copies an entry to its end, where its checksum is verified.
func read(f *zip.File, w io.Writer) error {
	r, err := f.Open()
	if err != nil {
		return err
	}
	_, err = io.Copy(w, r)
	return errors.Join(err, r.Close())
}

// checkpoints lists those in dir, oldest first.
func checkpoints(dir string) ([]string, error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var steps []int64
	for _, f := range files {
		var step int64
		if _, err := fmt.Sscanf(f.Name(), "step-%d.ckpt", &step); err == nil && f.Name() == checkpointName(step) {
			steps = append(steps, step)
		}
	}
	slices.Sort(steps) // as names, 10^8 steps would sort before 99999999
	paths := make([]string, len(steps))
	for i, step := range steps {
		paths[i] = filepath.Join(dir, checkpointName(step))
	}
	return paths, nil
}

// removeTemporary removes what a trainer that was killed while it saved has left in dir.
func removeTemporary(dir string) error {
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, f := range files {
		if strings.HasPrefix(f.Name(), tempName) {
			if err := os.Remove(filepath.Join(dir, f.Name())); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

// writeModel writes the weights, little-endian float64, unless path is empty, and returns their SHA-256.
func writeModel(s *state, path string) ([]byte, error) {
	var model bytes.Buffer
	if err := binary.Write(&model, binary.LittleEndian, s.Weights); err != nil {
		return nil, err
	}
	hash := sha256.Sum256(model.Bytes())
	if path == "" {
		return hash[:], nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	return hash[:], writeFile(path, func(w io.Writer) error {
		_, err := model.WriteTo(w)
		return err
	})
}

// writeFile writes a file so that it is either there as a whole or not at all, also after a crash.
func writeFile(path string, write func(io.Writer) error) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, tempName+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // gone, once it is renamed
	if err := errors.Join(write(f), f.Chmod(0o644), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
