// Reads the files that its arguments name in the ways of Java, and prints a checksum of each.

import java.io.FileInputStream;
import java.io.RandomAccessFile;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.stream.Stream;
import java.util.zip.CRC32;

public class Reader {
    static long checksum(String path) {
        CRC32 sum = new CRC32();
        try (FileInputStream stream = new FileInputStream(path);
                RandomAccessFile random = new RandomAccessFile(path, "r");
                FileChannel channel = FileChannel.open(Path.of(path))) {
            sum.update(Files.readAllBytes(Path.of(path)));
            sum.update(stream.readAllBytes());
            byte[] end = new byte[100];
            random.seek(random.length() - end.length);
            random.readFully(end);
            sum.update(end);
            sum.update(channel.map(FileChannel.MapMode.READ_ONLY, 0, channel.size()));
        } catch (java.io.IOException error) {
            throw new java.io.UncheckedIOException(error);
        }
        return sum.getValue();
    }

    public static void main(String[] paths) {
        Stream.of(paths).parallel().map(Reader::checksum).forEachOrdered(System.out::println);
    }
}
