package main

import (
	"archive/zip"
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func digitsOf(t *testing.T) (train, test []image) {
	t.Helper()
	train, test, err := load()
	if err != nil {
		t.Fatal(err)
	}
	return train, test
}

func TestGradient(t *testing.T) {
	images, _ := digitsOf(t)
	s := newState(7, len(images))
	var keep [hidden]float64
	for j := range keep {
		keep[j] = float64(j%3) / 2 // some off, some scaled
	}
	gradient := make([]float64, count)
	backward(s.Weights, &images[3], &keep, gradient)
	r := rand.New(rand.NewPCG(1, 2))
	loss := func() float64 { return backward(s.Weights, &images[3], &keep, make([]float64, count)) }
	for range 200 {
		i := r.IntN(count)
		const h = 1e-6
		was := s.Weights[i]
		s.Weights[i] = was + h
		up := loss()
		s.Weights[i] = was - h
		down := loss()
		s.Weights[i] = was
		if want := (up - down) / (2 * h); math.Abs(gradient[i]-want) > 1e-5 {
			t.Errorf("gradient of weight %d: got %g, want %g", i, gradient[i], want)
		}
	}
}

func TestLearns(t *testing.T) {
	images, test := digitsOf(t)
	s := newState(1, len(images))
	for range 2000 {
		s.train(images)
	}
	if got := accuracy(s.Weights, test); got < 0.88 {
		t.Errorf("accuracy on held-out images: got %.3f, want at least 0.88", got)
	}
}

// Interrupted at random steps, several times in a row, the training ends with the very same model.
func TestInterruptedIsIdentical(t *testing.T) {
	images, _ := digitsOf(t)
	const steps = 250
	train := func(s *state, to int64) *state {
		for s.Step < to {
			s.train(images)
		}
		return s
	}
	want := train(newState(1, len(images)), steps)
	for round := range uint64(12) {
		r := rand.New(rand.NewPCG(3, round))
		dir := t.TempDir()
		s := newState(1, len(images))
		for range 1 + r.IntN(5) {
			train(s, min(steps, s.Step+1+r.Int64N(100)))
			path, err := save(s, dir, 2, 0)
			if err != nil {
				t.Fatal(err)
			}
			if s, err = restore(path, len(images)); err != nil {
				t.Fatal(err)
			}
		}
		if got := train(s, steps); !slices.Equal(got.Weights, want.Weights) {
			t.Errorf("round %d: the model differs", round)
		}
	}
}

// No damage goes unnoticed: not in any entry, nor anywhere else where it would mean something.
func TestDamagedCheckpoint(t *testing.T) {
	images, _ := digitsOf(t)
	dir := t.TempDir()
	s := newState(1, len(images))
	s.train(images)
	path, err := save(s, dir, 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	damaged := filepath.Join(dir, "damaged")
	accepts := func(data []byte) (*state, bool) {
		t.Helper()
		if err := os.WriteFile(damaged, data, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := restore(damaged, len(images))
		if err != nil && (!errors.Is(err, errCheckpoint) || !strings.Contains(err.Error(), damaged)) {
			t.Errorf("got %v, want a bad checkpoint with its name", err)
		}
		return s, err == nil
	}
	flip := func(n, bit int) []byte {
		data := bytes.Clone(whole)
		data[n] ^= 1 << bit
		return data
	}
	z, err := zip.NewReader(bytes.NewReader(whole), int64(len(whole)))
	if err != nil {
		t.Fatal(err)
	}
	if len(z.File) != len(entries)+1 {
		t.Errorf("entries: got %d, want %d", len(z.File), len(entries)+1)
	}
	for _, f := range z.File {
		offset, err := f.DataOffset()
		if err != nil {
			t.Fatal(err)
		}
		first, size := int(offset), int(f.UncompressedSize64)
		for _, n := range []int{first, first + size/2, first + size - 1} {
			if _, ok := accepts(flip(n, n%8)); ok {
				t.Errorf("%s: accepted with byte %d flipped", f.Name, n-first)
			}
		}
	}
	r := rand.New(rand.NewPCG(5, 6))
	for range 60 {
		if n := r.IntN(len(whole)); n > 0 {
			if _, ok := accepts(whole[:n]); ok {
				t.Errorf("accepted with %d of %d bytes", n, len(whole))
			}
		}
		// The headers are at the end; some of their bits mean nothing, such as the time.
		n := len(whole) - 1 - r.IntN(600)
		if got, ok := accepts(flip(n, r.IntN(8))); ok && !reflect.DeepEqual(got, s) {
			t.Errorf("byte %d flipped: another state was accepted", n)
		}
	}
}

// A whole file whose numbers make no sense.
func TestImpossibleCheckpoint(t *testing.T) {
	images, _ := digitsOf(t)
	for name, spoil := range map[string]func(*state){
		"step":             func(s *state) { s.Step = -1 },
		"epoch":            func(s *state) { s.Epoch = -1 },
		"index below":      func(s *state) { s.Index = -1 },
		"index above":      func(s *state) { s.Index = int64(len(images)) + 1 },
		"image twice":      func(s *state) { s.Order[0] = s.Order[1] },
		"no such image":    func(s *state) { s.Order[0] = int64(len(images)) },
		"image below":      func(s *state) { s.Order[0] = -1 },
		"of other images":  func(s *state) { s.shuffle(len(images) - 1) },
		"of another model": func(s *state) { s.Weights = s.Weights[1:] },
	} {
		s := newState(1, len(images))
		spoil(s)
		path, err := save(s, t.TempDir(), 1, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := restore(path, len(images)); !errors.Is(err, errCheckpoint) {
			t.Errorf("%s: got %v, want a bad checkpoint", name, err)
		}
	}
}

// Whatever is written over a checkpoint and wherever it is cut, it is refused or is a state that
// training can go on from.
func FuzzRestore(f *testing.F) {
	images, _, err := load()
	if err != nil {
		f.Fatal(err)
	}
	var whole bytes.Buffer
	if err := encode(newState(1, len(images)), 0, &whole); err != nil {
		f.Fatal(err)
	}
	f.Add(0, []byte{}, 0)
	f.Add(3000, []byte{1}, 0)
	f.Add(-22, []byte("PK"), 0)
	f.Add(-100, []byte{0, 0}, 10)
	path := filepath.Join(f.TempDir(), "checkpoint")
	f.Fuzz(func(t *testing.T, at int, over []byte, cut int) {
		data := bytes.Clone(whole.Bytes())
		if at < 0 {
			at += len(data)
		}
		if at < 0 || at > len(data) || cut < 0 || cut > len(data) {
			t.Skip()
		}
		copy(data[at:], over)
		if err := os.WriteFile(path, data[:len(data)-cut], 0o600); err != nil {
			t.Fatal(err)
		}
		if s, err := restore(path, len(images)); err == nil {
			s.train(images)
		}
	})
}

func TestRotation(t *testing.T) {
	images, _ := digitsOf(t)
	dir := t.TempDir()
	for _, name := range []string{"notes.txt", "step-7.ckpt", "step-00000900.ckpt.bak"} { // not its own
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := newState(1, len(images))
	for range 5 {
		s.train(images)
		if _, err := save(s, dir, 3, 0); err != nil {
			t.Fatal(err)
		}
	}
	want := func(what string, names ...string) {
		t.Helper()
		left, err := checkpoints(dir)
		if err != nil {
			t.Fatal(err)
		}
		for i := range left {
			left[i] = filepath.Base(left[i])
		}
		if !slices.Equal(left, names) {
			t.Errorf("%s: got %v, want %v", what, left, names)
		}
	}
	want("after 5", checkpointName(3), checkpointName(4), checkpointName(5))
	// What was just written stays, also if it is the oldest.
	if _, err := save(newState(1, len(images)), dir, 1, 0); err != nil {
		t.Fatal(err)
	}
	want("after step 0", checkpointName(0))
	if all, err := os.ReadDir(dir); err != nil || len(all) != 4 {
		t.Errorf("files: got %d (%v), want 4: what is not its own stays, and nothing temporary is left", len(all), err)
	}
}
