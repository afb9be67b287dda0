package framework

import (
	"bufio"
	"bytes"
	"compress/flate"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
)

// A zip archive that was written to its end has, in this order: its members, each behind a local
// header; the central directory that names them; for large ones the zip64 end record and its
// locator; the end record, at whose end the file ends. (PKWARE APPNOTE 6.3.10, 4.3.) The standard
// library's reader is more tolerant than a proof of completeness may be: it takes bytes behind the
// end, and members that reach into the directory.
const (
	localMagic     = "PK\x03\x04"
	centralMagic   = "PK\x01\x02"
	endMagic       = "PK\x05\x06"
	end64Magic     = "PK\x06\x06"
	locator64Magic = "PK\x06\x07"

	localSize, centralSize, endSize, end64Size, locator64Size = 30, 46, 22, 56, 20
)

// member is one file in an archive.
type member struct {
	name       string
	method     uint16
	start, end int64 // of its data
}

// open returns the member's content, nil if its compression is unknown.
func (m member) open(r io.ReaderAt) io.Reader {
	section := io.NewSectionReader(r, m.start, m.end-m.start)
	switch m.method {
	case 0:
		return section
	case 8:
		return flate.NewReader(section)
	}
	return nil
}

var le = binary.LittleEndian

// readArchive checks that r, size bytes long, is a whole archive, and calls visit for each member.
// It reads the directory and the headers, not the data, and holds one entry at a time. The error says
// what is wrong.
func readArchive(r io.ReaderAt, size int64, visit func(member)) error {
	offset, length, count, err := findDirectory(r, size)
	if err != nil {
		return err
	}
	directory := bufio.NewReader(io.NewSectionReader(r, offset, length))
	var seen int64
	for range count {
		head := make([]byte, centralSize)
		if _, err := io.ReadFull(directory, head); err != nil || string(head[:4]) != centralMagic {
			return errors.New("its directory is damaged")
		}
		rest := make([]byte, int(le.Uint16(head[28:]))+int(le.Uint16(head[30:]))+int(le.Uint16(head[32:])))
		if _, err := io.ReadFull(directory, rest); err != nil {
			return errors.New("its directory is damaged")
		}
		seen += int64(len(head) + len(rest))
		m, err := locate(r, head, rest, offset)
		if err != nil {
			return err
		}
		visit(m)
	}
	if seen != length {
		return errors.New("its directory is damaged")
	}
	return nil
}

// findDirectory returns where the central directory is and how many entries it has.
func findDirectory(r io.ReaderAt, size int64) (offset, length, count int64, err error) {
	end, record, err := findEnd(r, size)
	if err != nil {
		return 0, 0, 0, err
	}
	count, length, offset = int64(le.Uint16(record[10:])), int64(le.Uint32(record[12:])), int64(le.Uint32(record[16:]))
	if end >= locator64Size+end64Size {
		locator := make([]byte, locator64Size)
		if _, err := r.ReadAt(locator, end-locator64Size); err != nil {
			return 0, 0, 0, fmt.Errorf("cannot be read: %w", err)
		}
		if string(locator[:4]) == locator64Magic {
			at := int64(le.Uint64(locator[8:]))
			record := make([]byte, end64Size)
			if at < 0 || at > end-locator64Size-end64Size {
				return 0, 0, 0, errors.New("its end record is damaged")
			}
			if _, err := r.ReadAt(record, at); err != nil {
				return 0, 0, 0, fmt.Errorf("cannot be read: %w", err)
			}
			if string(record[:4]) != end64Magic || at+12+int64(le.Uint64(record[4:])) != end-locator64Size {
				return 0, 0, 0, errors.New("its end record is damaged")
			}
			count, length, offset = int64(le.Uint64(record[32:])), int64(le.Uint64(record[40:])), int64(le.Uint64(record[48:]))
			end = at
		}
	}
	// The three are unsigned 64-bit numbers of somebody else's.
	if count < 0 || length < 0 || offset < 0 || offset > end || length != end-offset || count > length/centralSize {
		return 0, 0, 0, errors.New("its directory is not where its end record says")
	}
	return offset, length, count, nil
}

// findEnd returns the end record and where it begins. Behind it there may be a comment that it
// knows of, and nothing else.
func findEnd(r io.ReaderAt, size int64) (at int64, record []byte, err error) {
	tail := make([]byte, min(size, endSize+math.MaxUint16))
	if _, err := r.ReadAt(tail, size-int64(len(tail))); err != nil {
		return 0, nil, fmt.Errorf("cannot be read: %w", err)
	}
	for i := len(tail) - endSize; i >= 0; i-- {
		if !bytes.HasPrefix(tail[i:], []byte(endMagic)) {
			continue
		}
		if i+endSize+int(le.Uint16(tail[i+20:])) == len(tail) {
			return size - int64(len(tail)) + int64(i), tail[i : i+endSize], nil
		}
	}
	return 0, nil, errors.New("its end is missing")
}

// locate reads the entry of one member, and the local header that it points to.
func locate(r io.ReaderAt, head, rest []byte, limit int64) (member, error) {
	name := string(rest[:le.Uint16(head[28:])])
	broken := fmt.Errorf("its member %.100q is not whole", name)
	compressed, start := int64(le.Uint32(head[20:])), int64(le.Uint32(head[42:]))
	extra := rest[len(name):][:le.Uint16(head[30:])]
	for len(extra) >= 4 {
		id, n := le.Uint16(extra), int(le.Uint16(extra[2:]))
		if extra = extra[4:]; n > len(extra) {
			break
		}
		field := extra[:n]
		extra = extra[n:]
		if id != 1 { // zip64
			continue
		}
		take := func(into *int64, is bool) { // those that are 0xffffffff, in this order
			if is && len(field) >= 8 {
				*into, field = int64(le.Uint64(field)), field[8:]
			}
		}
		var uncompressed int64
		take(&uncompressed, le.Uint32(head[24:]) == math.MaxUint32)
		take(&compressed, le.Uint32(head[20:]) == math.MaxUint32)
		take(&start, le.Uint32(head[42:]) == math.MaxUint32)
	}
	local := make([]byte, localSize+len(name))
	if start < 0 || compressed < 0 || start > limit-int64(len(local)) {
		return member{}, broken
	}
	if _, err := r.ReadAt(local, start); err != nil {
		return member{}, broken
	}
	if string(local[:4]) != localMagic || int(le.Uint16(local[26:])) != len(name) || string(local[localSize:]) != name {
		return member{}, broken
	}
	start += int64(len(local)) + int64(le.Uint16(local[28:]))
	if start > limit || compressed > limit-start {
		return member{}, broken
	}
	return member{name: name, method: le.Uint16(head[10:]), start: start, end: start + compressed}, nil
}
