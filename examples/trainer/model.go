package main

import (
	"math"
	"math/rand/v2"
)

const (
	hidden  = 48
	batch   = 16
	dropout = 0.2
	rate    = 1e-3
	beta1   = 0.9
	beta2   = 0.999
	epsilon = 1e-8
)

// weights of a network pixels -> hidden (ReLU, dropout) -> classes (softmax), as one flat slice:
// w1[hidden][pixels], b1[hidden], w2[classes][hidden], b2[classes].
const (
	w1    = 0
	b1    = w1 + hidden*pixels
	w2    = b1 + hidden
	b2    = w2 + classes*hidden
	count = b2 + classes
)

// state is everything that training depends on; a checkpoint holds all of it.
type state struct {
	Step    int64
	Weights []float64
	M, V    []float64 // Adam's moments
	Epoch   int64
	Index   int64   // position in Order
	Order   []int64 // permutation of the training images in this epoch
	source  *rand.PCG
}

func newState(seed uint64, images int) *state {
	s := &state{
		Weights: make([]float64, count), M: make([]float64, count), V: make([]float64, count),
		source: rand.NewPCG(seed, 0x5eed),
	}
	r := rand.New(s.source)
	for i := range hidden * pixels {
		s.Weights[w1+i] = r.NormFloat64() * math.Sqrt(2.0/pixels)
	}
	for i := range classes * hidden {
		s.Weights[w2+i] = r.NormFloat64() * math.Sqrt(2.0/hidden)
	}
	s.shuffle(images)
	return s
}

func (s *state) shuffle(images int) {
	s.Order, s.Index = make([]int64, images), 0
	for i := range s.Order {
		s.Order[i] = int64(i)
	}
	rand.New(s.source).Shuffle(images, func(i, j int) { s.Order[i], s.Order[j] = s.Order[j], s.Order[i] })
}

// train makes one step and returns the mean loss of its batch.
func (s *state) train(images []image) float64 {
	r := rand.New(s.source)
	gradient := make([]float64, count)
	loss := 0.0
	for range batch {
		if int(s.Index) == len(s.Order) {
			s.Epoch++
			s.shuffle(len(images))
		}
		img := &images[s.Order[s.Index]]
		s.Index++
		var keep [hidden]float64
		for j := range keep {
			if r.Float64() >= dropout {
				keep[j] = 1 / (1 - dropout)
			}
		}
		loss += backward(s.Weights, img, &keep, gradient)
	}
	s.Step++
	correct1, correct2 := 1-math.Pow(beta1, float64(s.Step)), 1-math.Pow(beta2, float64(s.Step))
	for i, g := range gradient {
		g /= batch
		s.M[i] = beta1*s.M[i] + (1-beta1)*g
		s.V[i] = beta2*s.V[i] + (1-beta2)*g*g
		s.Weights[i] -= rate * (s.M[i] / correct1) / (math.Sqrt(s.V[i]/correct2) + epsilon)
	}
	return loss / batch
}

// forward returns the hidden activations and the class probabilities.
func forward(w []float64, img *image, keep *[hidden]float64) (h [hidden]float64, p [classes]float64) {
	for j := range h {
		sum := w[b1+j]
		row := w[w1+j*pixels : w1+(j+1)*pixels]
		for i, x := range img.x {
			sum += row[i] * x
		}
		h[j] = max(sum, 0) * keep[j]
	}
	top := math.Inf(-1)
	for k := range p {
		sum := w[b2+k]
		row := w[w2+k*hidden : w2+(k+1)*hidden]
		for j, a := range h {
			sum += row[j] * a
		}
		p[k] = sum
		top = max(top, sum)
	}
	total := 0.0
	for k := range p {
		p[k] = math.Exp(p[k] - top)
		total += p[k]
	}
	for k := range p {
		p[k] /= total
	}
	return h, p
}

// backward adds the gradient of one image's cross-entropy to gradient and returns the loss.
func backward(w []float64, img *image, keep *[hidden]float64, gradient []float64) float64 {
	h, p := forward(w, img, keep)
	var dh [hidden]float64
	for k := range p {
		d := p[k]
		if k == img.label {
			d--
		}
		gradient[b2+k] += d
		for j := range h {
			gradient[w2+k*hidden+j] += d * h[j]
			dh[j] += d * w[w2+k*hidden+j]
		}
	}
	for j := range dh {
		if h[j] == 0 { // off, or dropped
			continue
		}
		d := dh[j] * keep[j]
		gradient[b1+j] += d
		row := gradient[w1+j*pixels : w1+(j+1)*pixels]
		for i, x := range img.x {
			row[i] += d * x
		}
	}
	return -math.Log(max(p[img.label], 1e-300))
}

// accuracy is the share of images that are recognised, 0 to 1.
func accuracy(w []float64, images []image) float64 {
	var all [hidden]float64
	for j := range all {
		all[j] = 1
	}
	right := 0
	for i := range images {
		_, p := forward(w, &images[i], &all)
		best := 0
		for k := range p {
			if p[k] > p[best] {
				best = k
			}
		}
		if best == images[i].label {
			right++
		}
	}
	return float64(right) / float64(len(images))
}
