package framework

import (
	"archive/zip"
	"encoding/binary"
	"io"
)

// pickleLimit bounds how much of a data.pkl is read: tensors are not in it.
const pickleLimit = 16 << 20

// pickleStep returns the integer that follows the key global_step or step in a pickle, -1 if there
// is none. It looks at bytes and executes nothing.
func pickleStep(f *zip.File) int64 {
	r, err := f.Open()
	if err != nil {
		return -1
	}
	defer func() { _ = r.Close() }()
	data, err := io.ReadAll(io.LimitReader(r, pickleLimit))
	if err != nil {
		return -1
	}
	for _, key := range []string{"global_step", "step"} {
		if n := integerAfter(data, key); n >= 0 {
			return n
		}
	}
	return -1
}

// integerAfter finds the string key and reads the integer that is pushed next. Opcodes of Python's
// pickletools: X and \x8c push strings, q, r and \x94 memoize, K, M, J and \x8a push integers.
func integerAfter(data []byte, key string) int64 {
	for i := 0; i+len(key) < len(data); i++ {
		if string(data[i:i+len(key)]) != key || !isString(data[:i], len(key)) {
			continue
		}
		if n := pushed(data[i+len(key):]); n >= 0 {
			return n
		}
	}
	return -1
}

// isString reports whether before ends with an opcode that pushes a string of n bytes.
func isString(before []byte, n int) bool {
	at := len(before)
	if at >= 2 && before[at-2] == 0x8c && int(before[at-1]) == n {
		return true
	}
	return at >= 5 && before[at-5] == 'X' && int(binary.LittleEndian.Uint32(before[at-4:])) == n
}

func pushed(data []byte) int64 {
	switch {
	case len(data) > 2 && data[0] == 'q':
		data = data[2:]
	case len(data) > 5 && data[0] == 'r':
		data = data[5:]
	case len(data) > 1 && data[0] == 0x94:
		data = data[1:]
	}
	switch {
	case len(data) > 1 && data[0] == 'K':
		return int64(data[1])
	case len(data) > 2 && data[0] == 'M':
		return int64(binary.LittleEndian.Uint16(data[1:]))
	case len(data) > 4 && data[0] == 'J':
		return int64(int32(binary.LittleEndian.Uint32(data[1:])))
	case len(data) > 1 && data[0] == 0x8a && data[1] > 0 && data[1] <= 8 && len(data) > 1+int(data[1]):
		var n uint64
		for i := range int(data[1]) {
			n |= uint64(data[2+i]) << (8 * i)
		}
		return int64(n)
	}
	return -1
}
