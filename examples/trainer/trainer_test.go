package main

import (
	"bytes"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
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
	const steps = 400
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
			train(s, min(steps, s.Step+1+r.Int64N(200)))
			path, err := save(s, dir, 2)
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

func TestDamagedCheckpoint(t *testing.T) {
	images, _ := digitsOf(t)
	dir := t.TempDir()
	path, err := save(newState(1, len(images)), dir, 1)
	if err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	damaged := filepath.Join(dir, "damaged")
	refuse := func(what string, data []byte) {
		t.Helper()
		if err := os.WriteFile(damaged, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if s, err := restore(damaged, len(images)); err == nil {
			var again bytes.Buffer
			if err := encode(s, &again); err != nil || !bytes.Equal(again.Bytes(), whole) { // a flip that means nothing
				t.Errorf("%s was accepted", what)
			}
		}
	}
	for n := 0; n < len(whole); n += len(whole) / 50 {
		refuse("a truncated file", whole[:n])
		flipped := bytes.Clone(whole)
		flipped[n] ^= 4
		refuse("a flipped bit", flipped)
	}
}

func TestRotation(t *testing.T) {
	images, _ := digitsOf(t)
	dir := t.TempDir()
	s := newState(1, len(images))
	for range 5 {
		s.train(images)
		if _, err := save(s, dir, 3); err != nil {
			t.Fatal(err)
		}
	}
	left, err := checkpoints(dir)
	if err != nil || len(left) != 3 || filepath.Base(left[2]) != checkpointName(5) {
		t.Errorf("left: %v (%v), want the newest 3", left, err)
	}
}
