package framework

import (
	"bufio"
	"encoding/binary"
	"io"
	"math"
	"strconv"
	"strings"
)

// pickleLimit bounds how much of a data.pkl is read, in bytes: the tensors' data is not in it.
const pickleLimit = 64 << 20

// stepKeys are the keys whose integer is the training step, best first. All but the first are
// believed only at the top of the pickle: optimizers count steps of their own below.
var stepKeys = []string{"global_step", "iteration", "step"}

// pickledStep returns the training step that a pickle holds, -1 if it holds none. The pickle is
// walked opcode by opcode (Python's pickletools has the list); nothing is built, called or imported,
// and memory does not grow with the input.
func pickledStep(r io.Reader) int64 {
	s := stepScan{r: bufio.NewReader(r), key: -1, bestKey: len(stepKeys), best: -1, memo: map[uint64]int{}}
	for s.next() {
	}
	return s.best
}

type stepScan struct {
	r     *bufio.Reader
	depth int            // open MARKs: 1 is the inside of the outermost dict
	key   int            // index into stepKeys of the string just pushed, -1: another value
	puts  uint64         // how many values were memoized
	memo  map[uint64]int // the keys among them

	best               int64
	bestKey, bestDepth int
}

// next reads one opcode; false at the end, or at what is no pickle.
func (s *stepScan) next() bool {
	op, err := s.r.ReadByte()
	if err != nil {
		return false
	}
	// What follows a key directly, or after memoizing it, is its value.
	key := s.key
	s.key = -1
	switch op {
	case 'K':
		return s.integer(key, s.fixed(1))
	case 'M':
		return s.integer(key, s.fixed(2))
	case 'J':
		n := s.fixed(4)
		if n > math.MaxInt32 && n <= math.MaxUint32 {
			n = math.MaxUint64 // negative
		}
		return s.integer(key, n)
	case 0x8a: // LONG1
		n, err := s.r.ReadByte()
		if err != nil {
			return false
		}
		if n == 0 {
			return s.integer(key, 0)
		}
		if n <= 8 {
			return s.integer(key, s.fixed(int(n)))
		}
		return s.skip(uint64(n))
	case 'I', 'L':
		line, ok := s.line()
		n, err := strconv.ParseUint(strings.TrimSuffix(line, "L"), 10, 63)
		if err != nil || line == "00" || line == "01" { // the booleans of protocol 1
			n = math.MaxUint64
		}
		return ok && s.integer(key, n)

	case 'X', 'T':
		return s.text(s.fixed(4))
	case 0x8c, 'U':
		return s.text(s.fixed(1))
	case 0x8d:
		return s.text(s.fixed(8))
	case 'S', 'V':
		line, ok := s.line()
		s.key = keyOf(strings.Trim(line, `'"`))
		return ok

	case 'q', 'r', 'p', 0x94: // PUT and MEMOIZE keep the value on top
		at := s.puts
		ok := true
		switch op {
		case 'q':
			at = s.fixed(1)
		case 'r':
			at = s.fixed(4)
		case 'p':
			at, ok = s.index()
		}
		s.puts++
		if s.key = key; key >= 0 && len(s.memo) < 1024 {
			s.memo[at] = key
		} else {
			delete(s.memo, at)
		}
		return ok && at != math.MaxUint64
	case 'h', 'j', 'g':
		var at uint64
		ok := true
		switch op {
		case 'h':
			at = s.fixed(1)
		case 'j':
			at = s.fixed(4)
		default:
			at, ok = s.index()
		}
		if k, known := s.memo[at]; known {
			s.key = k
		}
		return ok

	case '(':
		s.depth++
		return true
	case 't', 'l', 'd', 'u', 'e', 'o', '1', 0x90, 0x91:
		s.depth--
		return true
	case 'i':
		s.depth--
		return s.lines(2)
	case 'c':
		return s.lines(2)
	case 'F', 'P':
		return s.lines(1)
	case 'G', 0x95:
		return s.skip(8)
	case 0x80, 0x82:
		return s.skip(1)
	case 0x83:
		return s.skip(2)
	case 0x84:
		return s.skip(4)
	case 'C':
		return s.skip(s.fixed(1))
	case 'B', 0x8b:
		return s.skip(s.fixed(4))
	case 0x8e, 0x96:
		return s.skip(s.fixed(8))
	case '0', '2', 'N', 'Q', 'R', 'b', 'a', 's', ']', '}', ')', 0x81, 0x85, 0x86, 0x87, 0x88, 0x89,
		0x8f, 0x92, 0x93, 0x97, 0x98:
		return true
	}
	return false // STOP, or no pickle
}

// integer is a value that was pushed; a key before it makes it a step. MaxUint64: not one to use.
func (s *stepScan) integer(key int, n uint64) bool {
	if key < 0 || n > math.MaxInt64 {
		return true
	}
	if key > 0 && s.depth > 1 {
		return true
	}
	if key < s.bestKey || key == s.bestKey && s.depth < s.bestDepth {
		s.best, s.bestKey, s.bestDepth = int64(n), key, s.depth
	}
	return true
}

// text reads a string of n bytes; only short ones are looked at.
func (s *stepScan) text(n uint64) bool {
	if n == 0 || n > 16 {
		return s.skip(n)
	}
	raw := make([]byte, n)
	if _, err := io.ReadFull(s.r, raw); err != nil {
		return false
	}
	s.key = keyOf(string(raw))
	return true
}

func keyOf(text string) int {
	for i, key := range stepKeys {
		if text == key {
			return i
		}
	}
	return -1
}

// fixed reads a little-endian number of n bytes; MaxUint64 at the end of the input.
func (s *stepScan) fixed(n int) uint64 {
	var raw [8]byte
	if _, err := io.ReadFull(s.r, raw[:n]); err != nil {
		return math.MaxUint64
	}
	return binary.LittleEndian.Uint64(raw[:])
}

func (s *stepScan) skip(n uint64) bool {
	if n > pickleLimit {
		return false
	}
	_, err := s.r.Discard(int(n))
	return err == nil
}

// line reads up to a newline; a long one ends the walk.
func (s *stepScan) line() (string, bool) {
	raw, err := s.r.ReadSlice('\n')
	return strings.TrimSuffix(string(raw), "\n"), err == nil
}

func (s *stepScan) lines(n int) bool {
	for range n {
		if _, ok := s.line(); !ok {
			return false
		}
	}
	return true
}

func (s *stepScan) index() (uint64, bool) {
	line, ok := s.line()
	n, err := strconv.ParseUint(line, 10, 63)
	return n, ok && err == nil
}
