package privstream;

import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.flink.shaded.asm9.org.objectweb.asm.ClassReader;
import org.apache.flink.shaded.asm9.org.objectweb.asm.ClassVisitor;
import org.apache.flink.shaded.asm9.org.objectweb.asm.ClassWriter;
import org.apache.flink.shaded.asm9.org.objectweb.asm.MethodVisitor;
import org.apache.flink.shaded.asm9.org.objectweb.asm.Opcodes;

/**
 * Adds one call to Beam's {@code DoFnOperator}: when time ends a bundle, the watermark goes on at once.
 *
 * <p>Beam schedules that call instead, after another one that fires the timers which are due and so begins the next
 * bundle, during which no watermark is sent. A step with a timer that sets itself again, as a source that is polled has,
 * sends watermarks only with checkpoints then. Where the number of elements ends a bundle, Beam calls at once, too.
 *
 * <p>Usage, with the libraries on the class path: {@code java privstream.PromptWatermarks FOLDER}, which gets the class.
 */
public final class PromptWatermarks {
  private static final String OPERATOR =
      "org/apache/beam/runners/flink/translation/wrappers/streaming/DoFnOperator";

  private PromptWatermarks() {}

  public static void main(String[] arguments) throws Exception {
    String file = OPERATOR + ".class";
    int[] added = {0};
    ClassWriter changed = new ClassWriter(ClassWriter.COMPUTE_MAXS);
    try (InputStream original = PromptWatermarks.class.getClassLoader().getResourceAsStream(file)) {
      new ClassReader(original.readAllBytes()).accept(new Operator(changed, added), 0);
    }
    if (added[0] != 1) {
      throw new IllegalStateException("one call was to be added to DoFnOperator, not " + added[0]);
    }
    Path target = Path.of(arguments[0], file);
    Files.createDirectories(target.getParent());
    Files.write(target, changed.toByteArray());
  }

  private static final class Operator extends ClassVisitor {
    private final int[] added;

    Operator(ClassVisitor next, int[] added) {
      super(Opcodes.ASM9, next);
      this.added = added;
    }

    @Override
    public MethodVisitor visitMethod(
        int access, String name, String types, String generic, String[] exceptions) {
      MethodVisitor next = super.visitMethod(access, name, types, generic, exceptions);
      if (!name.equals("checkInvokeFinishBundleByTime")) {
        return next;
      }
      return new MethodVisitor(Opcodes.ASM9, next) {
        @Override
        public void visitMethodInsn(int code, String owner, String called, String types, boolean inInterface) {
          super.visitMethodInsn(code, owner, called, types, inInterface);
          if (called.equals("invokeFinishBundle")) {
            super.visitVarInsn(Opcodes.ALOAD, 0);
            super.visitMethodInsn(Opcodes.INVOKEVIRTUAL, OPERATOR, "updateOutputWatermark", "()V", false);
            added[0]++;
          }
        }
      };
    }
  }
}
