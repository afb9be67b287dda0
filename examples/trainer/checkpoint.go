package main

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A checkpoint is step-<8 digits>.ckpt, a zip file of five entries, each little-endian:
//
//	progress   step, epoch, index (int64)
//	order      the epoch's permutation (int64)
//	weights    float64
//	optimizer  Adam's moments m, then v (float64)
//	rng        the random number generator's state, as math/rand/v2 marshals it
//
// It is written under a temporary name, synced, and renamed into place.

var entries = []string{"progress", "order", "weights", "optimizer", "rng"}

func checkpointName(step int64) string { return fmt.Sprintf("step-%08d.ckpt", step) }

// save writes a checkpoint into dir, removes all but the newest keep ones, and returns its path.
func save(s *state, dir string, keep int) (string, error) {
	path := filepath.Join(dir, checkpointName(s.Step))
	if err := writeFile(path, func(w io.Writer) error { return encode(s, w) }); err != nil {
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

func encode(s *state, w io.Writer) error {
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
	return z.Close()
}

// restore reads a checkpoint. Whatever is wrong with it is an error that names it: the zip format's
// checksums cover every entry.
func restore(path string, images int) (*state, error) {
	s := &state{
		Weights: make([]float64, count), M: make([]float64, count), V: make([]float64, count),
		Order: make([]int64, images), source: &rand.PCG{},
	}
	z, err := zip.OpenReader(path)
	if err != nil {
		return nil, fmt.Errorf("checkpoint %s: %w", path, err)
	}
	defer func() { _ = z.Close() }()
	if len(z.File) != len(entries) {
		return nil, fmt.Errorf("checkpoint %s: %d entries instead of %d", path, len(z.File), len(entries))
	}
	progress, moments := make([]int64, 3), make([]float64, 2*count)
	for i, into := range []any{progress, s.Order, s.Weights, moments, nil} {
		data, err := entry(z.File[i], entries[i])
		if err == nil && into == nil {
			err = s.source.UnmarshalBinary(data)
		} else if err == nil {
			if want := binary.Size(into); len(data) != want {
				err = fmt.Errorf("%d bytes instead of %d", len(data), want)
			} else {
				err = binary.Read(bytes.NewReader(data), binary.LittleEndian, into)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("checkpoint %s: %s: %w", path, entries[i], err)
		}
	}
	s.Step, s.Epoch, s.Index = progress[0], progress[1], progress[2]
	copy(s.M, moments[:count])
	copy(s.V, moments[count:])
	if s.Index < 0 || int(s.Index) > images {
		return nil, fmt.Errorf("checkpoint %s: position %d of %d", path, s.Index, images)
	}
	return s, nil
}

func entry(f *zip.File, name string) ([]byte, error) {
	if f.Name != name {
		return nil, fmt.Errorf("found %q in its place", f.Name)
	}
	r, err := f.Open()
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	return io.ReadAll(io.LimitReader(r, 1<<26))
}

// checkpoints lists those in dir, oldest first.
func checkpoints(dir string) ([]string, error) {
	names, err := filepath.Glob(filepath.Join(dir, "step-*.ckpt"))
	if err != nil {
		return nil, err
	}
	names = slices.DeleteFunc(names, func(p string) bool { _, err := stepOf(p); return err != nil })
	slices.SortFunc(names, func(a, b string) int {
		x, _ := stepOf(a)
		y, _ := stepOf(b)
		return int(x - y)
	})
	return names, nil
}

func stepOf(path string) (int64, error) {
	return strconv.ParseInt(strings.TrimSuffix(strings.TrimPrefix(filepath.Base(path), "step-"), ".ckpt"), 10, 64)
}

// writeFile writes a file so that it is either there as a whole or not at all, also after a crash.
func writeFile(path string, write func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".tmp-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	err = errors.Join(write(f), f.Sync(), f.Close())
	if err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
