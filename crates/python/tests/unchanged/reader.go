// Reads the files that its arguments name from several goroutines, and prints a digest of each.
package main

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
)

func digest(path string) string {
	whole, err := os.ReadFile(path)
	if err != nil {
		panic(err)
	}
	file, err := os.Open(path)
	if err != nil {
		panic(err)
	}
	defer file.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, bufio.NewReader(file)); err != nil {
		panic(err)
	}
	return fmt.Sprintf("%x %x", sha256.Sum256(whole), sum.Sum(nil))
}

func main() {
	paths := os.Args[1:]
	found := make([]chan string, len(paths))
	for number, path := range paths {
		found[number] = make(chan string, 1)
		go func(path string, to chan string) { to <- digest(path) }(path, found[number])
	}
	for _, from := range found {
		fmt.Println(<-from)
	}
}
